"""Names of snapshots: which are refused, and the pattern that finds them again."""

from __future__ import annotations

import glob
import os
import re
import string
from typing import Any, Callable

#: Behind the name of a snapshot that is being written, or removed.
PARTIAL = ".partial"
#: Behind the name of one that is there until another has taken its place.
REPLACED = ".replaced"
# Between the name and these, at random.
TOKEN_DIGITS = 36
_ASIDE = re.compile(rf"(.*?)(?:\.([0-9a-f]{{{TOKEN_DIGITS}}}))?\.(?:partial|replaced)")


def aside(name: str, token: str, ending: str) -> str:
    """Returns the name of what lies beside a snapshot with the given name."""
    return f"{name}.{token}{ending}"


def parts(name: str) -> tuple[str, str | None]:
    """Returns the name of a snapshot, and the token of what lies beside it, if any.

    Example:
        >>> parts(aside('iter_1', '0' * TOKEN_DIGITS, PARTIAL)) == ('iter_1', '0' * 36)
        True
        >>> parts('iter_1.partial')
        ('iter_1', None)
    """
    found = _ASIDE.fullmatch(name)
    return (found[1], found[2]) if found else (name, None)


def series(name: str) -> str:
    """Returns what the names of a run's snapshots have in common.

    Example:
        >>> series('iter_12') == series('iter_7.partial')
        True
    """
    return re.sub(r"\d+", "0", parts(name)[0])


def replaced_patterns(pattern: str) -> tuple[str, str]:
    """Returns patterns of what was there before another takes its place."""
    token = "[0-9a-f]" * TOKEN_DIGITS
    return pattern + REPLACED, aside(pattern, token, REPLACED)


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
        ValueError: If it is no format string, one of another number of things than the
            trainer, an absolute path or no name.
    """
    if callable(filename):
        return
    if not isinstance(filename, str):
        raise TypeError(
            f"filename must be a format string or a function of the trainer, not"
            f" {filename!r}"
        )
    pattern_of(filename)
    fields = [field for _, field, *_ in string.Formatter().parse(filename)]
    n_unnumbered = sum(field is not None and field[:1] in ("", ".") for field in fields)
    if n_unnumbered > 1:
        raise ValueError(
            f"{filename!r} has {n_unnumbered} fields without a number, and there is but"
            f" one trainer: write {{0.updater.iteration}} and so on"
        )
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
