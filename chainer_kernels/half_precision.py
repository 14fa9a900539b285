"""float16, computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def in_float32(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Returns arrays of float16 as float32; others, and mixed ones, as they are."""
    if all(type(a) is np.ndarray and a.dtype == np.float16 for a in arrays):
        return [a.astype(np.float32) for a in arrays]
    return arrays


def rounded(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns float32, or float16, where what exceeds it becomes infinite.

    Looking for that is the loss scale's business.
    """
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)
