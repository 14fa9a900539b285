"""Calls that succeed on all ranks, or fail on all."""

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


def words_of(error: Exception) -> str:
    """Returns the text of an error, with its class if it is none of snapshots."""
    # A KeyError puts its text into quotes.
    in_quotes = isinstance(error, KeyError) and error.args
    words = str(error.args[0] if in_quotes else error)
    if isinstance(error, SnapshotError):
        return words
    return f"{type(error).__name__}: {words}"
