"""The errors of snapshots."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable

from divisible.communication import attempts
from divisible.files import why_not
from divisible.terminal_text import printable

if TYPE_CHECKING:
    from pipeline.pipeline import Pipeline


class SnapshotError(RuntimeError):
    """A snapshot could not be written, or must not be read.

    When ranks save or load together, it is raised alike on every rank. Its words may
    have names from a file of anybody's, which cannot control a terminal here.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), keeps_lines=True)


class MismatchError(SnapshotError, ValueError):
    """A snapshot of something else than it is to be loaded into."""


class UnreadableError(SnapshotError, ValueError):
    """A file is damaged, or has pickled objects, which could run any code."""


def on_all_ranks(
    pipeline: Pipeline,
    call: str,
    what: str,
    function: Callable[..., Any],
    *arguments: Any,
) -> Any:
    """Calls a function on every rank, which all raise if it fails on one.

    Returns:
        The result of the function on this rank.

    Raises:
        SnapshotError: On every rank, with what happened on the first rank that failed.
    """
    gather = functools.partial(pipeline.gather, call=call)
    return attempts.on_all_ranks(
        gather, what, function, *arguments, error=SnapshotError
    )


def on_first(
    pipeline: Pipeline,
    call: str,
    what: str,
    function: Callable[..., Any],
    *arguments: Any,
) -> Any:
    """Calls a function on rank 0.

    Returns:
        The result of the function there, on every rank.

    Raises:
        SnapshotError: On every rank, if it fails.
    """

    def if_first() -> Any:
        return function(*arguments) if pipeline.ranks.is_chief else None

    return pipeline.gather(on_all_ranks(pipeline, call, what, if_first), call)[0]


def words_of(error: Exception) -> str:
    """Returns the text of an error, with its class if it is none of snapshots."""
    return attempts.words_of(error, SnapshotError)


@contextlib.contextmanager
def naming(path: str | os.PathLike, doing: str) -> Iterator[None]:
    """Names a file in what the file system raises in a block.

    Where a file is read or written, rather than opened, such an error has no path.

    Args:
        path: Of the file, or the directory.
        doing: ``'read'`` or the like.

    Raises:
        SnapshotError: For an :class:`OSError`, which is its cause.
    """
    try:
        yield
    except OSError as error:
        raise SnapshotError(
            f"cannot {doing} {os.fspath(path)}: {why_not(error, path)}"
        ) from error
