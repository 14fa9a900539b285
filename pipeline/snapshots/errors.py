"""The errors of snapshots."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from divisible.files import why_not
from divisible.terminal_text import printable


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
