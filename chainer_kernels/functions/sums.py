"""Sums over all axes but those that come last in memory, as gradients of biases are."""

from __future__ import annotations

from typing import Any

import numpy as np

from chainer_kernels.functions import channels
from chainer_kernels.layouts import are_float32, around, memory_order

Arrays = tuple[np.ndarray, ...]

#: Below, NumPy takes as long as the call of a kernel.
SMALLEST = 1 << 15


def sum_over_axes(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Sum.forward`` of large arrays."""
    (x,) = inputs
    if function.axis is None or not are_float32(x) or x.size < SMALLEST:
        return NotImplemented
    added = {axis % x.ndim for axis in function.axis}
    kept = [axis for axis in range(x.ndim) if axis not in added]
    view = _rows(x, kept)
    if view is None:
        return NotImplemented
    shape = [x.shape[axis] for axis in kept]
    if function.keepdims:
        shape = [1 if axis in added else x.shape[axis] for axis in range(x.ndim)]
    return (channels.sums(view).astype("f").reshape(shape),)


def _rows(x: np.ndarray, kept: list[int]) -> np.ndarray | None:
    """Returns an array as (rows, sums, 1); ``None`` where the sums do not come last."""
    if not kept or memory_order(x) is None:
        return None
    views = around([x], kept)
    if views is None or views[0].shape[2] > 1 or views[0].shape[0] == 1:
        return None
    return views[0]
