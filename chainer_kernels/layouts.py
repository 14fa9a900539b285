"""The memory order of activations.

Chainer's arrays are (N, C, H, W). Their memory may be in another order: a convolution
on a CPU leaves (N, H, W, C) behind, seen through a transposed view. Kernels stay there,
for then a product's output is the next layer's input as it is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np


def channels_last(x: np.ndarray) -> np.ndarray:
    """Returns (N, C, ...) as a C contiguous (N, ..., C), a copy only where needed."""
    return np.ascontiguousarray(x.transpose(_last(x.ndim)))


def channels_first(x: np.ndarray) -> np.ndarray:
    """Returns (N, ..., C) seen as (N, C, ...)."""
    return x.transpose(_first(x.ndim))


def is_channels_last(x: np.ndarray) -> bool:
    """Returns whether the memory of (N, C, ...) is in the order (N, ..., C)."""
    return x.transpose(_last(x.ndim)).flags.c_contiguous


@functools.cache
def _last(n_axes: int) -> tuple[int, ...]:
    """Returns the axes of (N, C, ...) in the order (N, ..., C)."""
    # `np.moveaxis` finds that out for each array, which takes longer than to use it.
    return (0, *range(2, n_axes), 1)


@functools.cache
def _first(n_axes: int) -> tuple[int, ...]:
    """Returns the axes of (N, ..., C) in the order (N, C, ...)."""
    return (0, n_axes - 1, *range(1, n_axes - 1))


def memory_order(x: np.ndarray) -> tuple[int, ...] | None:
    """Returns the axes in the order of memory; ``None`` if there are gaps in it."""
    if x.flags.c_contiguous:
        return tuple(range(x.ndim))
    # Axes of length 1 may have equal strides; they stay in their order.
    axes = tuple(sorted(range(x.ndim), key=lambda axis: -x.strides[axis]))
    return axes if x.transpose(axes).flags.c_contiguous else None


def in_memory_order(x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Returns an array whose axes are in an order in memory, a copy only where needed.

    Example:
        >>> in_memory_order(np.zeros((2, 3)), (1, 0)).strides
        (8, 16)
    """
    return np.ascontiguousarray(x.transpose(axes)).transpose(np.argsort(axes))


def flat(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns arrays of one shape in one dimension, element beside element.

    Arrays in the memory order of the first one are views. Others are copied into its
    order; if it has gaps, all are in C order.
    """
    if arrays[0].flags.c_contiguous:
        # Reshaped, every other element of an array would stay so.
        return [a.ravel() for a in arrays]
    order = memory_order(arrays[0]) or tuple(range(arrays[0].ndim))
    return [np.ascontiguousarray(a.transpose(order)).reshape(-1) for a in arrays]


def around(
    arrays: Sequence[np.ndarray], axes: Sequence[int]
) -> list[np.ndarray] | None:
    """Returns arrays of one shape as (before, between, behind), some axes in between.

    The results are views or copies, under the same conditions as in :func:`flat`.

    Args:
        arrays: The first one's memory order is that of all.
        axes: The axes between, in ascending order.

    Returns:
        Arrays of three dimensions; ``None`` where other axes lie between these.

    Example:
        >>> x = channels_first(np.zeros((2, 4, 4, 3), 'f'))
        >>> [a.shape for a in around([x], [1])]
        [(32, 3, 1)]
        >>> [a.shape for a in around([x.copy()], [1])]
        [(2, 3, 16)]
    """
    order = memory_order(arrays[0]) or tuple(range(arrays[0].ndim))
    first = order.index(axes[0]) if axes else 0
    last = first + len(axes)
    if order[first:last] != tuple(axes):
        return None
    sizes = [arrays[0].shape[axis] for axis in order]
    shape = [
        math.prod(part) for part in (sizes[:first], sizes[first:last], sizes[last:])
    ]
    return [np.ascontiguousarray(a.transpose(order)).reshape(shape) for a in arrays]


def empty_like(x: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
    """Returns a new array in the memory order in which :func:`flat` sees ``x``.

    Args:
        x: The array.
        dtype: Dtype of the new array; ``None`` for that of ``x``.
    """
    # NumPy closes gaps in the order of strides.
    order = "C" if memory_order(x) is None else "K"
    return np.empty_like(x, dtype, order, subok=False)


def are_float32(*arrays: np.ndarray) -> bool:
    """Returns whether all are NumPy's own arrays of float32."""
    for a in arrays:  # noqa: SIM110
        # In a model of small layers a generator would take longer than the layer.
        if type(a) is not np.ndarray or a.dtype != np.float32:
            return False
    return True


def are_alike(*arrays: np.ndarray) -> bool:
    """Returns whether arrays are of float32, one shape and one memory order.

    The order must have no gaps, and the arrays must not be empty.
    """
    if not are_float32(*arrays):
        return False
    first = arrays[0]
    return (
        first.size > 0
        and first.ndim > 0
        and all(a.shape == first.shape and a.strides == first.strides for a in arrays)
        and memory_order(first) is not None
    )
