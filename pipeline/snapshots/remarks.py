"""Warnings about a snapshot that wait until it is known what came of it.

Where warnings are errors, a snapshot that has its name would be told to have failed.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

# Of each thread its own.
_kept: ContextVar[list[str] | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def keeping(remarks: list[str]) -> Iterator[None]:
    """Adds what is to be warned of in a block to a list."""
    before = _kept.set(remarks)
    try:
        yield
    finally:
        _kept.reset(before)


def remark(words: str) -> None:
    """Warns, or adds to the list of :func:`keeping`."""
    kept = _kept.get()
    if kept is None:
        warnings.warn(words, stacklevel=3)
    else:
        kept.append(words)


def warn(remarks: Iterable[str]) -> None:
    """Warns of each."""
    for each in remarks:
        warnings.warn(each, stacklevel=3)
