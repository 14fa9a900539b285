"""Names of snapshots: which are refused, and the pattern that finds them again."""

from __future__ import annotations

import glob
import os
import string
from typing import Any, Callable

#: Behind the name of a snapshot that is being written, or removed.
PARTIAL = ".partial"
#: Behind the name of one that is there until another has taken its place.
REPLACED = ".replaced"


def check_name(name: str | os.PathLike) -> None:
    """Refuses a path whose last part is no name for a snapshot.

    Raises:
        ValueError: If nothing that has this name would be found again.
    """
    last = os.path.basename(os.path.normpath(name)) if os.fspath(name) else ""
    if last in ("", ".", "..") or os.path.basename(os.fspath(name)) in (".", ".."):
        raise ValueError(
            f"{os.fspath(name)!r} is no name for a snapshot: it is a place for some"
        )
    for ending in (PARTIAL, REPLACED):
        if last.endswith(ending):
            raise ValueError(
                f"{os.fspath(name)!r} is no name for a snapshot: what ends in {ending}"
                f" is a snapshot that another takes the place of, or a part of one"
            )


def check_filename(filename: str | Callable[[Any], str]) -> None:
    """Refuses names that a trainer would save under and could not resume from.

    Raises:
        TypeError: If it is neither a text nor a function.
        ValueError: If it is no format string, an absolute path or no name.
    """
    if callable(filename):
        return
    if not isinstance(filename, str):
        raise TypeError(
            f"filename must be a format string or a function of the trainer, not"
            f" {filename!r}"
        )
    pattern_of(filename)
    check_relative_name(filename)


def check_relative_name(name: str) -> None:
    """Refuses what is no name for a snapshot below ``trainer.out``.

    Raises:
        ValueError: If it is an absolute path or no name.
    """
    if os.path.isabs(name):
        raise ValueError(
            f"{name!r} is no name for a snapshot: it is an absolute path, and snapshots"
            f" are saved in trainer.out; give the trainer another out"
        )
    check_name(name)


def pattern_of(filename: str) -> str:
    """Returns the pattern, with ``*``, of the names that a format string makes.

    Raises:
        ValueError: If it is no format string.

    Example:
        >>> pattern_of('iter_{.updater.iteration}')
        'iter_*'
    """
    try:
        parts = list(string.Formatter().parse(filename))
    except ValueError as error:
        raise ValueError(f"{filename!r} is no format string: {error}") from error
    return "".join(
        glob.escape(text) + ("" if field is None else "*") for text, field, *_ in parts
    )
