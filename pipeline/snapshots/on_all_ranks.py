"""Calls that succeed for all ranks, or fail for all."""

from __future__ import annotations

from typing import Any, Callable

from pipeline.pipeline import Pipeline
from pipeline.snapshots.errors import SnapshotError


def on_all_ranks(
    pipeline: Pipeline,
    call: str,
    what: str,
    function: Callable[..., Any],
    *arguments: Any,
) -> Any:
    """Calls a function on every rank; if it fails on one, all learn of it.

    Returns:
        What the function returned on this rank.

    Raises:
        SnapshotError: On every rank, with what happened on the first rank that failed.
    """
    result = failure = cause = None
    try:
        result = function(*arguments)
    except Exception as error:
        cause, failure = error, words_of(error)
    for rank, theirs in enumerate(pipeline.gather(failure, call)):
        if theirs is not None:
            raise SnapshotError(f"{what}: rank {rank}: {theirs}") from cause
    return result


def on_first(
    pipeline: Pipeline,
    call: str,
    what: str,
    function: Callable[..., Any],
    *arguments: Any,
) -> Any:
    """Calls a function on rank 0; if it fails, all learn of it.

    Returns:
        What the function returned there, on every rank.

    Raises:
        SnapshotError: On every rank, as :func:`on_all_ranks`.
    """

    def if_first() -> Any:
        return function(*arguments) if pipeline.ranks.is_chief else None

    return pipeline.gather(on_all_ranks(pipeline, call, what, if_first), call)[0]


def words_of(error: Exception) -> str:
    """Returns the text of an error, with its class if it is none of snapshots."""
    # A KeyError puts its text into quotes.
    in_quotes = isinstance(error, KeyError) and error.args
    words = str(error.args[0] if in_quotes else error)
    if isinstance(error, SnapshotError):
        return words
    return f"{type(error).__name__}: {words}"
