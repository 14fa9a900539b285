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

    Args:
        make: Makes it, and changes nothing.
        gather: Returns what all ranks give.

    Returns:
        The result of ``make`` on this rank.

    Raises:
        Exception: The error of ``make`` on this rank.
        DisagreementError: If it has failed on another rank only.

    Example:
        >>> on_all_ranks(lambda: 3, lambda words: [words])
        3
    """
    made = failure = words = None
    try:
        made = make()
    except Exception as error:
        failure, words = error, f"{type(error).__name__}: {error}"
    said = gather(words)
    if failure is not None:
        raise failure
    for rank, theirs in enumerate(said):
        if theirs is not None:
            raise DisagreementError(f"nothing was changed: rank {rank}: {theirs}")
    return made
