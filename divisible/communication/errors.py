"""Errors that involve other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: Default of the seconds after which a wait for another rank is a stall.
TIMEOUT = 300.0


class StallError(RuntimeError):
    """A wait for another rank took longer than the timeout, or that rank has left."""


class DisagreementError(ValueError):
    """Ranks were given different arguments; raised alike on every rank."""


def check_timeout(timeout: float) -> None:
    """Checks that a timeout is positive.

    Raises:
        TypeError, ValueError: If it is not.
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
        ranks: Numbers of the ranks.
        titles: Further names of some ranks, by rank.

    Example:
        >>> in_words([0]), in_words([0, 2, 3])
        ('rank 0', 'ranks 0, 2 and 3')
        >>> in_words([0, 2], {2: "replica 1, stage 0"})
        'ranks 0 and 2 (replica 1, stage 0)'
    """
    titles = titles or {}
    *others, last = [f"{r} ({titles[r]})" if r in titles else str(r) for r in ranks]
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
