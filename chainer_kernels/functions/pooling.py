"""Pooling and its inverses, in any number of spatial dimensions.

All are one of five passes between images and windows, of
:mod:`chainer_kernels.loops.pooling`::

                    images -> windows        windows -> images
    by an index     maximum, take_from       put_at
    all cells       add_up                   spread
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from chainer_kernels import threads
from chainer_kernels.geometry import Geometry, pooling_geometry
from chainer_kernels.half_precision import in_float32, rounded
from chainer_kernels.layouts import channels_first, channels_last
from chainer_kernels.loops import pooling as loops
from chainer_kernels.pooling_windows import Windows, windows

Arrays = tuple[np.ndarray, ...]


def _windows(
    geometry: Geometry, sizes: Sequence[int], outs: Sequence[int]
) -> Windows | None:
    """Returns the table of the windows; ``None`` for what Chainer refuses."""
    kernel, stride, pad = geometry[:3]
    if min(*sizes, *outs, *kernel, *stride) < 1 or min(pad) < 0:
        return None
    return windows(tuple(sizes), tuple(outs), kernel, stride, pad)


def max_pooling(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``MaxPoolingND.forward_cpu``."""
    (x,) = inputs
    geometry = pooling_geometry(function)
    outs = geometry.output_sizes(x.shape[2:])
    table = _windows(geometry, x.shape[2:], outs)
    if table is None or not _is_covered(x):
        return NotImplemented
    is_last = _is_last(x)
    y, indexes = (_empty(x, outs, is_last, dtype) for dtype in ("f", "l"))
    _run(loops.maximum, [x, y, indexes], is_last, table)
    function._in_shape, function._in_dtype = x.shape, x.dtype
    function.indexes = indexes
    return (rounded(y, x.dtype),)


def max_pooling_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``MaxPoolingNDGrad.forward_cpu``."""
    (gy,) = inputs
    pooling = function.func
    if gy.dtype != pooling._in_dtype:
        return NotImplemented
    return _put_at(
        pooling_geometry(pooling), gy, pooling.indexes, pooling._in_shape[2:]
    )


def max_pooling_with_indexes(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``MaxPoolingNDWithIndexes.forward_cpu``."""
    pooling = function.func
    return _take_from(pooling_geometry(pooling), inputs[0], pooling.indexes, -np.inf)


def upsampling_2d(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Upsampling2D.forward_cpu``."""
    (x,) = inputs
    geometry = pooling_geometry(function)
    sizes = _unpooled_sizes(function, geometry, x)
    if not (
        _are_taps(function.indexes, geometry)
        and geometry.output_sizes(sizes) == x.shape[2:]
    ):
        return NotImplemented
    result = _put_at(geometry, x, function.indexes, sizes)
    if result is not NotImplemented:
        function._in_dtype = x.dtype
        function.outh, function.outw = sizes
    return result


def upsampling_2d_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Upsampling2DGrad.forward_cpu``."""
    geometry = pooling_geometry(function)
    if not _are_taps(function.indexes, geometry):
        return NotImplemented
    return _take_from(geometry, inputs[0], function.indexes, 0)


def average_pooling_2d(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``AveragePooling2D.forward_cpu``."""
    (x,) = inputs
    # Chainer's function covers all of an input in no case.
    geometry = pooling_geometry(function)._replace(cover_all=False)
    outs = geometry.output_sizes(x.shape[2:])
    return _averages(function, x, geometry, outs, math.prod(geometry.kernel))


def average_pooling_nd(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``AveragePoolingND.forward_cpu``."""
    (x,) = inputs
    geometry = pooling_geometry(function)
    outs = geometry.output_sizes(x.shape[2:])
    width = None
    if function.pad_value is None:
        width = function._get_pooling_width(np, x.shape[2:], x.dtype)
    divisor = math.prod(geometry.kernel) if width is None else width
    result = _averages(function, x, geometry, outs, divisor)
    if result is not NotImplemented:
        function.width = width
    return result


def average_pooling_2d_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``AveragePooling2DGrad.forward_cpu``."""
    geometry = pooling_geometry(function)
    divisor = math.prod(geometry.kernel)
    return _spread(geometry, inputs[0], function._in_shape[2:], divisor)


def average_pooling_nd_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``AveragePoolingNDGrad.forward_cpu``."""
    pooling = function.func
    geometry = pooling_geometry(pooling)
    # Chainer divides the gradient in place, which other code may hold.
    divisor = math.prod(geometry.kernel) if pooling.width is None else pooling.width
    return _spread(geometry, inputs[0], pooling._in_shape[2:], divisor)


def unpooling_2d(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Unpooling2D.forward``."""
    (x,) = inputs
    geometry = pooling_geometry(function)
    sizes = _unpooled_sizes(function, geometry, x)
    result = _spread(geometry, x, sizes)
    if result is not NotImplemented:
        function.outh, function.outw = sizes
    return result


def unpooling_nd(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``UnpoolingND.forward``."""
    (x,) = inputs
    geometry = pooling_geometry(function)
    sizes = function.outs or geometry.input_sizes(x.shape[2:])
    result = _spread(geometry, x, sizes)
    if result is not NotImplemented:
        function.retain_inputs(())
        function.outs = sizes
    return result


def unpooling_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Unpooling2DGrad.forward`` and ``UnpoolingNDGrad.forward``."""
    (gy,) = inputs
    geometry = pooling_geometry(function)
    return _add_up(geometry, gy, geometry.output_sizes(gy.shape[2:]))


def _unpooled_sizes(
    function: Any, geometry: Geometry, x: np.ndarray
) -> tuple[int, ...]:
    """Returns the height and width that a function was asked for, or finds them."""
    found = geometry.input_sizes(x.shape[2:])
    asked = (function.outh, function.outw)
    return tuple(b if a is None else a for a, b in zip(asked, found))


def _averages(
    function: Any,
    x: np.ndarray,
    geometry: Geometry,
    outs: tuple[int, ...],
    divisor: int | np.ndarray,
) -> Arrays:
    result = _add_up(geometry, x, outs, divisor)
    if result is not NotImplemented:
        function._in_shape, function._in_dtype = x.shape, x.dtype
    return result


def _add_up(
    geometry: Geometry,
    x: np.ndarray,
    outs: tuple[int, ...],
    divisor: int | np.ndarray = 1,
) -> Arrays:
    """Returns the sum of each window, divided."""
    table = _windows(geometry, x.shape[2:], outs)
    if table is None or not _is_covered(x):
        return NotImplemented
    is_last = _is_last(x)
    y = _empty(x, outs, is_last)
    _run(loops.add_up, [x, y], is_last, table)
    return (rounded(_divided(y, divisor, out=y), x.dtype),)


def _spread(
    geometry: Geometry,
    y: np.ndarray,
    sizes: tuple[int, ...],
    divisor: int | np.ndarray = 1,
) -> Arrays:
    """Returns images: in each cell the sum of its windows, which were divided."""
    table = _windows(geometry, sizes, y.shape[2:])
    if table is None or not _is_covered(y):
        return NotImplemented
    is_last = _is_last(y)
    x = _empty(y, sizes, is_last)
    _run(loops.spread, [x, _divided(y, divisor)], is_last, table)
    return (rounded(x, y.dtype),)


def _put_at(
    geometry: Geometry, y: np.ndarray, indexes: np.ndarray, sizes: tuple[int, ...]
) -> Arrays:
    """Returns images that have what windows had, at the index of each."""
    table = _windows(geometry, sizes, y.shape[2:])
    if table is None or not _is_covered(y) or type(indexes) is not np.ndarray:
        return NotImplemented
    # The gradient of an input is in the memory order of the input.
    is_last = _is_last(indexes)
    x = _empty(y, sizes, is_last)
    _run(loops.put_at, [x, y, indexes], is_last, table)
    return (rounded(x, y.dtype),)


def _take_from(
    geometry: Geometry, x: np.ndarray, indexes: np.ndarray, outside: float
) -> Arrays:
    """Returns for each window the cell at its index, which may be outside."""
    table = _windows(geometry, x.shape[2:], indexes.shape[2:])
    if table is None or not _is_covered(x) or type(indexes) is not np.ndarray:
        return NotImplemented
    is_last = _is_last(indexes)
    y = _empty(x, indexes.shape[2:], is_last)
    _run(loops.take_from, [x, y, indexes], is_last, (np.float32(outside), *table))
    return (rounded(y, x.dtype),)


def _divided(
    values: np.ndarray, divisor: int | np.ndarray, out: np.ndarray | None = None
) -> np.ndarray:
    """Returns float32 quotients; what float16 counts exactly is divided exactly."""
    if isinstance(divisor, int) and divisor == 1:
        return values
    divisor = np.asarray(divisor, np.float32)
    return np.divide(values, divisor, out=out, dtype=np.float32)


def _is_covered(x: np.ndarray) -> bool:
    """Returns whether this is NumPy's own array of float32, or of float16."""
    return type(x) is np.ndarray and x.dtype.char in "fe"


def _are_taps(indexes: Any, geometry: Geometry) -> bool:
    """Returns whether a user's indexes are positions in a window."""
    return (
        type(indexes) is np.ndarray
        and indexes.dtype.kind in "iu"
        and indexes.size > 0
        and indexes.min() >= 0
        and indexes.max() < math.prod(geometry.kernel)
    )


def _is_last(x: np.ndarray) -> bool:
    """Returns whether the channels of (N, C, ...) lie beside each other in memory."""
    return x.shape[1] > 1 and x.strides[1] == x.itemsize


def _empty(
    like: np.ndarray, sizes: Sequence[int], is_last: bool, dtype: str = "f"
) -> np.ndarray:
    """Returns a new array of other sizes, its channels last in memory or not."""
    n, c = like.shape[:2]
    if is_last:
        return channels_first(np.empty((n, *sizes, c), dtype))
    return np.empty((n, c, *sizes), dtype)


def _cells(x: np.ndarray, is_last: bool) -> np.ndarray:
    """Returns (N, C, ...) as contiguous (images, cells, channels), for a loop."""
    if x.dtype.kind in "iu":
        x = x.astype("l", copy=False)
    (x,) = in_float32([x])
    n, c, *sizes = x.shape
    if is_last:
        return channels_last(x).reshape(n, math.prod(sizes), c)
    return np.ascontiguousarray(x).reshape(n * c, math.prod(sizes), 1)


def _run(
    loop: Callable, arrays: Sequence[np.ndarray], is_last: bool, rest: Sequence[Any]
) -> None:
    threads.run_slices(loop, [_cells(a, is_last) for a in arrays], *rest)
