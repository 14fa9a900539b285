"""Sums over all axes but those that come last in memory, as gradients of biases are."""

from __future__ import annotations

from typing import Any

import numpy as np

from chainer_kernels import switch
from chainer_kernels.functions import channels
from chainer_kernels.layouts import are_float32, around, memory_order

Arrays = tuple[np.ndarray, ...]

#: Below, NumPy takes as long as the call of a kernel.
SMALLEST = 1 << 15


def sum_over_axes(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Sum.forward`` of large arrays."""
    (x,) = inputs
    found = None if function.axis is None else _total(x, function.axis)
    if found is None:
        return NotImplemented
    if function.keepdims:
        found = np.expand_dims(found, function.axis)
    return (found,)


def total(x: Any, axis: tuple[int, ...]) -> Any:
    """Returns the sum over some axes: the bits are those of ``chainer.functions.sum``.

    Args:
        x: Any array.
        axis: One or more.
    """
    found = _total(x, axis) if switch.is_ours() else None
    return x.sum(axis=axis) if found is None else found


def _total(x: Any, axis: tuple[int, ...]) -> np.ndarray | None:
    """Returns the sum; ``None`` where NumPy is as fast, or another order better."""
    if not are_float32(x) or x.size < SMALLEST:
        return None
    added = {each % x.ndim for each in axis}
    kept = [each for each in range(x.ndim) if each not in added]
    view = _rows(x, kept)
    if view is None:
        return None
    return channels.sums(view).astype("f").reshape([x.shape[each] for each in kept])


def _rows(x: np.ndarray, kept: list[int]) -> np.ndarray | None:
    """Returns an array as (rows, sums, 1); ``None`` where the sums do not come last."""
    if not kept or memory_order(x) is None:
        return None
    views = around([x], kept)
    if views is None or views[0].shape[2] > 1 or views[0].shape[0] == 1:
        return None
    return views[0]
