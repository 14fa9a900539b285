r"""Convolutions and batch normalization by cuDNN, for arrays of CuPy.

Arrays are (N, C, ...), as Chainer's. Their memory may be in that order, or channels
last, which cuDNN computes faster; the first array decides, and what is computed is in
the same order. Arrays with gaps, or in another order than the first, are copied:

::

    x (N, C, H, W) ----> N C H W --+
                   \-> N H W C --+-- convolution --> y, in the order of x
    W (O, C, h, w) ----> as x -----+

All arrays of a call are float32, or all float16, and on the current GPU; none is empty.
``choice`` says which engines may compute. Each function returns ``None`` for what cuDNN
refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from chainer_kernels.geometry import Geometry
from chainer_kernels.providers import cudnn_library
from chainer_kernels.providers.cudnn_library import (
    ALIGNMENT,
    EngineChoice,
    Operand,
    Request,
    cupy,
)

NAME = "cuDNN"

Array = Any
Shape = tuple[int, ...]


def version() -> str:
    """Returns the library's version."""
    return cudnn_library.library().backend_version_string()


def is_usable() -> bool:
    """Returns whether cuDNN is available for CuPy's arrays."""
    return cudnn_library.library() is not None


def device() -> int:
    """Returns the number of the current GPU."""
    return cupy.cuda.runtime.getDevice()


def convolution(
    x: Array, W: Array, b: Array | None, geometry: Geometry, choice: EngineChoice
) -> Array | None:
    """Returns the output of a convolution.

    Args:
        x: Input (N, C, *sizes).
        W: Weights (O, C / groups, *kernel).
        b: Bias (O,), if there is one.
        geometry: The convolution's.
        choice: The engines that may compute.
    """
    if x.ndim == 3:
        x, W, geometry = _with_axis(x), _with_axis(W), _of_two_axes(geometry)
        return _without_axis(convolution(x, W, b, geometry, choice))
    is_last = _is_channels_last(x)
    shape = (len(x), len(W), *geometry.output_sizes(x.shape[2:]))
    arrays = [_arranged(x, is_last), _arranged(W, is_last)]
    if b is not None and choice.tensor_cores:
        # Other engines add no bias.
        column = _arranged(b.reshape(1, -1, *[1] * (x.ndim - 2)), is_last)
        y = _computed(
            *(_biased, [*arrays, column], shape, is_last, geometry, choice),
            is_vital=False,
        )
        if y is not None:
            return y
    y = _computed(_forward, arrays, shape, is_last, geometry, choice)
    return _plus(y, b)


def convolution_data(
    gy: Array,
    W: Array,
    b: Array | None,
    geometry: Geometry,
    size: Shape,
    choice: EngineChoice,
) -> Array | None:
    """Returns the gradient of a convolution's input, or a deconvolution's output.

    Args:
        gy: Gradient of the output (N, O, *sizes).
        W: Weights (O, C / groups, *kernel).
        b: Number to add to each channel of the result (C,), or ``None``.
        geometry: The convolution's.
        size: The spatial sizes of the result.
        choice: The engines that may compute.
    """
    if gy.ndim == 3:
        gy, W, geometry = _with_axis(gy), _with_axis(W), _of_two_axes(geometry)
        return _without_axis(convolution_data(gy, W, b, geometry, (1, *size), choice))
    is_last = _is_channels_last(gy)
    arrays = [_arranged(gy, is_last), _arranged(W, is_last)]
    shape = (len(gy), W.shape[1] * geometry.groups, *size)
    return _plus(_computed(_data, arrays, shape, is_last, geometry, choice), b)


def convolution_weights(
    x: Array, gy: Array, geometry: Geometry, choice: EngineChoice
) -> Array | None:
    """Returns the gradient of a convolution's weights, C contiguous.

    Args:
        x: Input (N, C, *sizes).
        gy: Gradient of the output (N, O, *sizes).
        geometry: The convolution's.
        choice: The engines that may compute.
    """
    if x.ndim == 3:
        x, gy, geometry = _with_axis(x), _with_axis(gy), _of_two_axes(geometry)
        return _without_axis(convolution_weights(x, gy, geometry, choice))
    is_last = _is_channels_last(x)
    arrays = [_arranged(x, is_last), _arranged(gy, is_last)]
    shape = (gy.shape[1], x.shape[1] // geometry.groups, *geometry.kernel)
    gW = _computed(_weights, arrays, shape, is_last, geometry, choice)
    return gW if gW is None else cupy.ascontiguousarray(gW)


def batch_normalization(
    x: Array,
    gamma: Array,
    beta: Array,
    running: tuple[Array, Array] | None,
    eps: float,
    decay: float,
    choice: EngineChoice,
) -> tuple[Array, Array, Array] | None:
    """Returns a normalized batch, its mean and the inverse of its standard deviation.

    Args:
        x: Input (N, C, ...).
        gamma: Factors (C,), float32 or float16 as all of the following.
        beta: Summands (C,).
        running: Running mean and variance (C,) of a training, updated in place.
        eps: Constant added to the variance.
        decay: How much of the running ones is kept.
        choice: The engines that may compute.

    Returns:
        As ``x``, and two arrays (C,) of float32.
    """
    is_last, n = _is_channels_last(x), x.shape[1]
    operand, channels = _batch(x, is_last), _channels(n)
    request = Request(
        _normalized,
        (operand, *[channels] * 4),
        (operand, *[channels] * 4),
        scalars=(eps, 1 - decay),
        choice=choice,
        device=device(),
    )
    graph = cudnn_library.find(request)
    if graph is None:
        return None
    # There is no graph without running ones.
    before = running or (_per_channel(n, zeros=True), _per_channel(n, zeros=True))
    y = _empty(x.shape, is_last, x.dtype)
    mean, inv_std, *after = (_per_channel(n) for _ in range(4))
    inputs = [_single(a) for a in (gamma, beta, *before)]
    cudnn_library.execute(
        graph, [_arranged(x, is_last), *inputs, y, mean, inv_std, *after]
    )
    if running is not None:
        for old, new in zip(running, after):
            old[...] = new
    return y, mean, inv_std


def batch_normalization_backward(
    gy: Array, x: Array, gamma: Array, mean: Array, inv_std: Array, choice: EngineChoice
) -> tuple[Array, Array, Array] | None:
    """Returns the gradients of a batch normalization's input, gamma and beta.

    Args:
        gy: Gradient of the output (N, C, ...).
        x: Input.
        gamma: Factors (C,).
        mean: Mean of the batch (C,).
        inv_std: The inverse of the batch's standard deviation (C,).
        choice: The engines that may compute.

    Returns:
        The first as ``x``, the others of float32.
    """
    is_last, n = _is_channels_last(x), x.shape[1]
    operand, channels = _batch(x, is_last), _channels(n)
    request = Request(
        _normalized_backward,
        (operand, operand, *[channels] * 3),
        (operand, channels, channels),
        choice=choice,
        device=device(),
    )
    graph = cudnn_library.find(request)
    if graph is None:
        return None
    gx = _empty(x.shape, is_last, x.dtype)
    ggamma, gbeta = _per_channel(n), _per_channel(n)
    inputs = [_single(a) for a in (gamma, mean, inv_std)]
    images = [_arranged(a, is_last) for a in (gy, x)]
    cudnn_library.execute(graph, [*images, *inputs, gx, ggamma, gbeta])
    return gx, ggamma, gbeta


def _forward(graph: Any, x: Any, W: Any, **windows: list[int]) -> Sequence[Any]:
    return (graph.conv_fprop(image=x, weight=W, **windows),)


def _biased(graph: Any, x: Any, W: Any, b: Any, **windows: list[int]) -> Sequence[Any]:
    (y,) = _forward(graph, x, W, **windows)
    return (graph.bias(input=y, bias=b),)


def _data(graph: Any, gy: Any, W: Any, **windows: list[int]) -> Sequence[Any]:
    return (graph.conv_dgrad(loss=gy, filter=W, **windows),)


def _weights(graph: Any, x: Any, gy: Any, **windows: list[int]) -> Sequence[Any]:
    return (graph.conv_wgrad(image=x, loss=gy, **windows),)


def _normalized(
    graph: Any, x: Any, gamma: Any, beta: Any, mean: Any, var: Any, eps: Any, share: Any
) -> Sequence[Any]:
    return graph.batchnorm(
        input=x,
        scale=gamma,
        bias=beta,
        in_running_mean=mean,
        in_running_var=var,
        epsilon=eps,
        momentum=share,
    )


def _normalized_backward(
    graph: Any, gy: Any, x: Any, gamma: Any, mean: Any, inv_std: Any
) -> Sequence[Any]:
    return graph.batchnorm_backward(
        grad=gy, input=x, scale=gamma, mean=mean, inv_variance=inv_std
    )


def _computed(
    operation: Any,
    arrays: list[Array],
    shape: Shape,
    is_last: bool,
    geometry: Geometry,
    choice: EngineChoice,
    is_vital: bool = True,
) -> Array | None:
    """Returns the output of a convolution's operation over arranged arrays."""
    dtype = arrays[0].dtype
    request = Request(
        operation,
        tuple(_operand(a.shape, is_last, dtype.char) for a in arrays),
        (_operand(shape, is_last, dtype.char),),
        (
            ("padding", geometry.pad),
            ("stride", geometry.stride),
            ("dilation", geometry.dilation),
        ),
        choice=choice,
        device=device(),
    )
    graph = cudnn_library.find(request, is_vital)
    if graph is None:
        return None
    out = _empty(shape, is_last, dtype)
    cudnn_library.execute(graph, [*arrays, out])
    return out


def _axes(ndim: int, is_last: bool) -> Shape:
    """Returns the axes of (N, C, ...) in the order of memory."""
    return (0, *range(2, ndim), 1) if is_last else tuple(range(ndim))


def _is_channels_last(x: Array) -> bool:
    return (
        not x.flags.c_contiguous and x.transpose(_axes(x.ndim, True)).flags.c_contiguous
    )


def _arranged(a: Array, is_last: bool) -> Array:
    """Returns an array without gaps in an order of memory, copied where it must be."""
    in_order = a.transpose(_axes(a.ndim, True)) if is_last else a
    if in_order.flags.c_contiguous and not a.data.ptr % ALIGNMENT:
        return a
    return _back(in_order.copy(), is_last)


def _back(in_order: Array, is_last: bool) -> Array:
    """Returns an array in an order of memory as (N, C, ...)."""
    ndim = in_order.ndim
    return in_order.transpose(0, ndim - 1, *range(1, ndim - 1)) if is_last else in_order


def _empty(shape: Shape, is_last: bool, dtype: np.dtype) -> Array:
    """Returns a new array (N, C, ...) in an order of memory."""
    if not is_last:
        return cupy.empty(shape, dtype)
    in_order = [shape[axis] for axis in _axes(len(shape), True)]
    return _back(cupy.empty(in_order, dtype), True)


@functools.lru_cache(1024)
def _operand(shape: Shape, is_last: bool, dtype: str) -> Operand:
    """Returns what a graph is told of an array (N, C, ...) in an order of memory.

    Example:
        >>> _operand((2, 3, 4, 5), False, 'f').strides
        (60, 20, 5, 1)
        >>> _operand((2, 3, 4, 5), True, 'f').strides
        (60, 1, 15, 3)
    """
    strides, step = [0] * len(shape), 1
    for axis in reversed(_axes(len(shape), is_last)):
        strides[axis] = step
        step *= shape[axis]
    return Operand(tuple(shape), tuple(strides), dtype)


def _batch(x: Array, is_last: bool) -> Operand:
    """Returns what a graph is told of a batch (N, C, ...), with one axis behind."""
    n, channels = x.shape[:2]
    shape = (n, channels, x.size // (n * channels), 1)
    return _operand(shape, is_last, x.dtype.char)


def _channels(n: int) -> Operand:
    """Returns what a graph is told of numbers for each channel."""
    return Operand((1, n, 1, 1), (n, 1, n, n), "f")


def _per_channel(n: int, zeros: bool = False) -> Array:
    return (cupy.zeros if zeros else cupy.empty)(n, np.float32)


def _single(a: Array) -> Array:
    """Returns numbers of channels as float32, aligned and without gaps."""
    return _arranged(a.astype(np.float32, copy=False), False)


def _plus(y: Array | None, b: Array | None) -> Array | None:
    """Adds numbers to each channel, in place."""
    if y is not None and b is not None:
        y += b.reshape(-1, *[1] * (y.ndim - 2))
    return y


def _with_axis(a: Array) -> Array:
    """Returns (N, C, L) as (N, C, 1, L), for convolutions of two dimensions."""
    return a[:, :, None]


def _without_axis(a: Array | None) -> Array | None:
    return None if a is None else a[:, :, 0]


def _of_two_axes(geometry: Geometry) -> Geometry:
    """Returns a convolution of one dimension as one of two."""
    kernel, stride, pad, dilation = geometry[:4]
    return geometry._replace(
        kernel=(1, *kernel),
        stride=(1, *stride),
        pad=(0, *pad),
        dilation=(1, *dilation),
    )
