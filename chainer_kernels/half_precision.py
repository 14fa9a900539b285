"""float16, computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chainer_kernels import threads
from chainer_kernels.layouts import are_float32, empty_like, flat
from chainer_kernels.loops import half_precision as loops

SINGLE, HALF = np.dtype("f"), np.dtype("e")


def are_float16(*arrays: np.ndarray) -> bool:
    """Returns whether all are NumPy's own arrays of float16."""
    return all(type(a) is np.ndarray and a.dtype == HALF for a in arrays)


def in_float32(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Returns arrays of float16 as float32; others, and mixed ones, as they are."""
    return [widened(a) for a in arrays] if are_float16(*arrays) else arrays


def are_singles_or_halves(*arrays: np.ndarray) -> bool:
    """Returns whether all are NumPy's own arrays of float32, or all of float16."""
    return are_float32(*arrays) or are_float16(*arrays)


def widened(array: np.ndarray) -> np.ndarray:
    """Returns float16 as float32, in the same memory order."""
    single = empty_like(array, SINGLE)
    halves, singles = flat([array, single])
    threads.run_slices(loops.widen, [halves.view(np.uint16), singles])
    return single


def rounded(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns float32, or float16, where what exceeds it becomes infinite.

    Looking for that is the loss scale's business.
    """
    if array.dtype != SINGLE or dtype != HALF:
        with np.errstate(over="ignore"):
            return array.astype(dtype, copy=False)
    half = empty_like(array, HALF)
    singles, halves = flat([array, half])
    threads.run_slices(loops.narrow, [singles, halves.view(np.uint16)])
    return half
