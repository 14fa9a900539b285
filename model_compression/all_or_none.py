"""Calls that succeed on all ranks, or fail on all."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from divisible.communication.errors import DisagreementError

_Made = TypeVar("_Made")


def on_all_ranks(make: Callable[[], _Made], gather: Callable[[Any], list]) -> _Made:
    """Makes something on every rank, before any rank changes anything.

    ::

        rank 0   made             .--> "nothing was changed: rank 1: MemoryError"
        rank 1   MemoryError -all-+--> its own error
        rank 2   made             '--> "nothing was changed: rank 1: MemoryError"

    A ``ValueError`` refuses what was asked for. Where all errors are such, all ranks
    raise one. Else all ranks raise something else, so that they go on alike.

    Args:
        make: Makes it, and changes nothing.
        gather: Returns what all ranks give.

    Returns:
        The result of ``make`` on this rank.

    Raises:
        ValueError: If ``make`` has raised one on any rank, and no other error.
        Exception: The error of ``make`` on this rank.
        DisagreementError: If it has failed on another rank.

    Example:
        >>> on_all_ranks(lambda: 3, lambda words: [words])
        3
    """
    made = failure = mine = None
    try:
        made = make()
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        failure, mine = error, (words, isinstance(error, ValueError))
    failed = {rank: said for rank, said in enumerate(gather(mine)) if said is not None}
    if not failed:
        return made
    is_refused = all(refuses for _, refuses in failed.values())
    if failure is not None and isinstance(failure, ValueError) == is_refused:
        raise failure
    rank = next(i for i, (_, refuses) in failed.items() if refuses == is_refused)
    kind = ValueError if is_refused else DisagreementError
    raise kind(f"nothing was changed: rank {rank}: {failed[rank][0]}") from failure
