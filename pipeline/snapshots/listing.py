"""Looks into directories: what cannot be looked at is an error, and not empty."""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pipeline.snapshots.errors import naming


def names_in(directory: Path) -> list[str]:
    """Returns the sorted names in a directory; none if there is no directory.

    Raises:
        SnapshotError: If it cannot be looked into, with the cause.
    """
    with naming(directory, "look for snapshots in"):
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []


def is_file(path: Path) -> bool:
    """Says whether there is a file, where ``Path.is_file`` takes errors for no.

    Raises:
        SnapshotError: If one cannot look, with the cause.
    """
    return stat.S_ISREG(mode_of(path))


def is_folder(path: Path) -> bool:
    """Says whether there is a directory, as :func:`is_file`."""
    return stat.S_ISDIR(mode_of(path))


def mode_of(path: Path) -> int:
    """Returns the mode of what is there, as :func:`is_file`; 0 if nothing is."""
    with naming(path, "look at"):
        try:
            return os.stat(path).st_mode
        except OSError as error:
            # A link that leads nowhere, or to itself, is nothing either.
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return 0
            raise


def matching(directory: Path, pattern: str) -> Iterator[Path]:
    """Yields what is in a directory and fits a pattern.

    ``Path.glob`` passes over directories that it cannot look into.

    Args:
        directory: Where to look.
        pattern: With ``*``, ``?`` and ``[]`` as in names of files; it may have ``/``,
            and ``**`` for any number of directories.

    Raises:
        SnapshotError: If a directory cannot be looked into, with the cause.
    """
    if os.path.isabs(pattern):
        raise ValueError(f"{pattern!r} must be a pattern of names in {directory}")
    first, _, others = pattern.partition("/")
    others = others.lstrip("/")
    if first == "**":
        below = [each for each in _matching_here(directory, "*") if is_folder(each)]
        if others:
            yield from matching(directory, others)
        else:
            yield from below
        for each in below:
            if not each.is_symlink():
                yield from matching(each, pattern)
    elif not others:
        yield from _matching_here(directory, first)
    else:
        for each in _matching_here(directory, first):
            if is_folder(each):
                yield from matching(each, others)


def _matching_here(directory: Path, pattern: str) -> list[Path]:
    if pattern in (".", ".."):
        return [directory / pattern]
    return [
        directory / name
        for name in names_in(directory)
        if fnmatch.fnmatchcase(name, pattern)
    ]
