"""Functions of NumPy that make arrays, and are no operations of an array.

::

    mask = np.ones(x.shape)         made of sizes; recorded once x changes it
    mask[x < 0] = 0                 setitem(constant, input[1], 0)
    np.array(x >= 0, np.float32)    greater_equal(input[0], 0), array(input[0], ...)

NumPy asks no subclass of its arrays about these functions.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import numpy as np

from divisible.chains.places import is_users
from divisible.chains.traced_arrays import Tape, apply, made

_COPIES = ("array", "asanyarray", "asarray", "ascontiguousarray")
_SIZED = ("arange", "empty", "eye", "full", "identity", "ones", "zeros")


@contextmanager
def recorded_arrays(tape: Tape) -> Iterator[None]:
    """Records what this thread makes by ``np.array``, ``np.zeros`` and others.

    Args:
        tape: Records the operations, and says whether a forward is recorded now.
    """
    thread = threading.get_ident()
    before = {name: getattr(np, name) for name in (*_COPIES, *_SIZED)}
    try:
        for name in _COPIES:
            setattr(np, name, _recording(before[name], thread))
        for name in _SIZED:
            setattr(np, name, _making(before[name], thread, tape))
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


def _making(
    function: Callable[..., Any], thread: int, tape: Tape
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        array = function(*args, **kwargs)
        is_recorded = threading.get_ident() == thread and tape.is_on
        if not is_recorded or not is_users(sys._getframe(1)):
            return array
        return made(array, tape)

    return call
