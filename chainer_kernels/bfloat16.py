"""Arrays rounded from float32 to bfloat16, the upper half of its bits.

NumPy has no bfloat16. Its bits are kept as uint16, or the rounded numbers as float32.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np

from chainer_kernels import threads
from chainer_kernels.layouts import empty_like, flat
from chainer_kernels.loops import bfloat16 as loops

#: The dtype in which the bits of bfloat16 are kept.
CODES = np.dtype(np.uint16)


def narrowed(array: np.ndarray) -> np.ndarray:
    """Returns float32 as the bits of bfloat16, in the same memory order.

    Rounds to nearest, ties to even. What exceeds bfloat16 becomes infinite.

    Args:
        array: Array of float32; or of bfloat16, which is returned as it is.

    Example:
        >>> [hex(code) for code in narrowed(np.array([1, 1.01, 3e38], np.float32))]
        ['0x3f80', '0x3f81', '0x7f62']
    """
    if array.dtype == CODES:
        return array
    once = _here.once
    if once is None or not once.is_of(array):
        return _narrowed(array)
    if once.codes is None or once.codes.shape != array.shape:
        once.codes = _narrowed(array)
    return once.codes


@contextlib.contextmanager
def narrowing_once(array: np.ndarray) -> Iterator[None]:
    """Makes :func:`narrowed` round an array once in a block, in this thread.

    Args:
        array: Array that nobody changes in the block.

    Example:
        >>> x = np.ones(3, np.float32)
        >>> with narrowing_once(x):
        ...     narrowed(x) is narrowed(x)
        True
    """
    before, _here.once = _here.once, _Once(array)
    try:
        yield
    finally:
        _here.once = before


class _Once:
    """An array that is rounded once, and its bits.

    Args:
        array: The array, which keeps its memory.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self._address = array.__array_interface__["data"][0]
        self.codes: np.ndarray | None = None

    def is_of(self, array: np.ndarray) -> bool:
        """Returns whether an array has the same numbers, without gaps."""
        return (
            array.size == self._array.size
            and array.flags.c_contiguous
            and array.__array_interface__["data"][0] == self._address
        )


class _Here(threading.local):
    """The array that this thread rounds once."""

    once: _Once | None = None


_here = _Here()


def _narrowed(array: np.ndarray) -> np.ndarray:
    codes = empty_like(array, CODES)
    _run(loops.narrow, array, codes)
    return codes


def rounded(array: np.ndarray) -> np.ndarray:
    """Returns float32 as numbers of bfloat16, which are float32 still.

    Args:
        array: Array of float32, or of bfloat16.

    Example:
        >>> rounded(np.array([1, 1.01, 3.14159], np.float32)).tolist()
        [1.0, 1.0078125, 3.140625]
    """
    singles = empty_like(array, np.dtype(np.float32))
    _run(loops.widen if array.dtype == CODES else loops.round_bits, array, singles)
    return singles


def _run(loop, array: np.ndarray, result: np.ndarray) -> None:
    source, out = flat([array, result])
    bits = [a if a.dtype == CODES else a.view(np.uint32) for a in (source, out)]
    threads.run_slices(loop, bits)
