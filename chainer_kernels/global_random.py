"""NumPy's global generator, drawn from by compiled loops."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from chainer_kernels.loops import mersenne_twister as loops

#: Draws that stay in the second-level cache, 128 KiB.
CHUNK = 16384


def pairs(n: int) -> Iterator[tuple[slice, np.ndarray]] | None:
    """Draws what ``np.random.rand(n)`` draws, some at a time.

    Args:
        n: How many numbers of ``rand``.

    Returns:
        Slices of the numbers, each with its pairs of words.
        :mod:`~chainer_kernels.loops.mersenne_twister` explains how ``rand`` turns a
        pair into a number. The next words overwrite the last ones. ``None`` if
        ``np.random.rand`` was replaced, or has another generator; nothing is drawn
        then.

    Example:
        >>> np.random.seed(0)
        >>> [p.size for _, p in pairs(20000)]
        [16384, 3616]
        >>> following = np.random.rand()
        >>> np.random.seed(0)
        >>> bool(np.random.rand(20001)[-1] == following)
        True
    """
    generator = getattr(
        getattr(np.random.rand, "__self__", None), "_bit_generator", None
    )
    if not isinstance(generator, np.random.MT19937) or sys.byteorder != "little":
        return None
    state = _state(generator)
    return None if state is None else _drawn(n, generator, state)


def _drawn(
    n: int, generator: Any, state: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    chunk = np.empty(min(n, CHUNK), np.uint64)
    for start in range(0, n, CHUNK):
        drawn = chunk[: n - start]
        with generator.lock:
            words = drawn.view(np.uint32)
            state[-1] = loops.draw(state[:-1], int(state[-1]), words)
        yield slice(start, start + drawn.size), drawn


@functools.lru_cache(maxsize=4)
def _state(generator: Any) -> np.ndarray | None:
    """Returns a generator's numbers and its position, where they lie."""
    address = generator.ctypes.state_address
    state = np.ctypeslib.as_array((ctypes.c_uint32 * 625).from_address(address))
    told = generator.state["state"]
    are_these = (state[:-1] == told["key"]).all() and state[-1] == told["pos"]
    return state if are_these else None
