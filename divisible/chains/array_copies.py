"""Functions of NumPy that make arrays of anything, and no operation of an array.

::

    np.array(x >= 0, np.float32)    greater_equal(input[0], 0), array(input[0], ...)

NumPy asks no subclass of its arrays about these functions.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import numpy as np

from divisible.chains.traced_arrays import apply

_NAMES = ("array", "asanyarray", "asarray", "ascontiguousarray")


@contextmanager
def recorded_copies() -> Iterator[None]:
    """Lets ``np.array`` and others record what this thread makes of traced arrays."""
    before = {name: getattr(np, name) for name in _NAMES}
    try:
        for name, function in before.items():
            setattr(np, name, _recording(function, threading.get_ident()))
        yield
    finally:
        for name, function in before.items():
            setattr(np, name, function)


def _recording(function: Callable[..., Any], thread: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return function(*args, **kwargs)
        return apply(function, args, kwargs)

    return call
