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
        cause = error
        # A KeyError puts its text into quotes.
        in_quotes = isinstance(error, KeyError) and error.args
        failure = str(error.args[0] if in_quotes else error)
        if not isinstance(error, SnapshotError):
            failure = f"{type(error).__name__}: {failure}"
    for rank, theirs in enumerate(pipeline.gather(failure, call)):
        if theirs is not None:
            raise SnapshotError(f"{what}: rank {rank}: {theirs}") from cause
    return result
