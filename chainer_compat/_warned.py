"""Warnings of what was given to a script: once for each kind, at the script's line."""

import sys
import warnings

# Packages whose frames lie between the line of a script and what it gets.
_BETWEEN = {"_frozen_importlib", "chainer", "chainer_compat", "functools", "importlib"}
_told = set()


def tell(kind: str, text: str) -> None:
    """Warns of a kind of change, at its first use.

    Args:
        kind (str): Name of the kind.
        text (str): The warning.
    """
    if kind in _told:
        return
    _told.add(kind)
    frame = sys._getframe(1)
    while frame.f_back is not None and is_between(frame):
        frame = frame.f_back
    warnings.warn_explicit(
        text,
        RuntimeWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
    )


def is_between(frame) -> bool:
    """Returns whether a frame belongs to this package, Chainer or the import."""
    name = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in _BETWEEN
