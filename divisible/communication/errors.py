"""Errors in which other ranks have a part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: The seconds after which a wait for another rank is a stall, by default.
TIMEOUT = 300.0


class StallError(RuntimeError):
    """A wait for another rank took longer than the timeout, or that rank has left."""


class DisagreementError(ValueError):
    """Ranks were given different things; raised alike on every rank."""


def check_timeout(timeout: float) -> None:
    """Refuses seconds in which nobody could come.

    Raises:
        TypeError, ValueError: If they are not positive.
    """
    if not timeout > 0:
        raise ValueError(f"timeout must be positive, not {timeout}")


def is_of_mpi(error: BaseException | None) -> bool:
    """Returns whether the MPI library has raised an error.

    Example:
        >>> from mpi4py import MPI
        >>> is_of_mpi(MPI.Exception(MPI.ERR_OTHER)), is_of_mpi(OSError())
        (True, False)
    """
    return type(error).__module__.startswith("mpi4py")


def in_words(ranks: Iterable[int], titles: Mapping[int, str] | None = None) -> str:
    """Returns the names of ranks, for a message.

    Args:
        ranks: Their numbers.
        titles: What else to call some of them.

    Example:
        >>> in_words([0]), in_words([0, 2, 3])
        ('rank 0', 'ranks 0, 2 and 3')
        >>> in_words([0, 2], {2: "replica 1, stage 0"})
        'ranks 0 and 2 (replica 1, stage 0)'
    """
    titles = titles or {}
    *others, last = [f"{r} ({titles[r]})" if r in titles else str(r) for r in ranks]
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
