"""Convolutions and what Chainer calls deconvolutions, with any number of axes.

The gradients of one are the other and :func:`weight_gradient`, so their gradients have
kernels too. Methods that Chainer has for any array go to ``gpu_convolution`` with those
that are not NumPy's.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from chainer_kernels import providers
from chainer_kernels.functions import gpu_convolution
from chainer_kernels.geometry import Geometry, geometry_of
from chainer_kernels.half_precision import SINGLE, in_float32, rounded
from chainer_kernels.layouts import are_float32, channels_first, channels_last
from chainer_kernels.product_dtype import record

Arrays = tuple[np.ndarray, ...]


def convolution(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``forward_cpu`` of ``Convolution2DFunction``, ``forward`` of ND's."""
    if type(inputs[0]) is not np.ndarray:
        return gpu_convolution.convolution(function, inputs)
    dtype, inputs = inputs[0].dtype, in_float32(inputs)
    x, W, *b = inputs
    geometry = geometry_of(function, W.shape[2:])
    if (
        getattr(function, "cudnn_fast", False)
        or not is_covered(function, geometry, W.shape, inputs)
        or x.shape[1] != W.shape[1] * geometry.groups
        or min(geometry.output_sizes(x.shape[2:])) <= 0
    ):
        return NotImplemented
    function.retain_inputs((0, 1))
    bias = np.ascontiguousarray(b[0]) if b else None
    y = _provider(function, dtype).convolution(
        channels_last(x), np.ascontiguousarray(W), bias, geometry
    )
    return (channels_first(rounded(y, dtype)),)


def weight_gradient(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``forward_cpu`` of ``Convolution2DGradW``, ``forward`` of ND's."""
    if type(inputs[0]) is not np.ndarray:
        return gpu_convolution.weight_gradient(function, inputs)
    dtype, inputs = inputs[0].dtype, in_float32(inputs)
    x, gy = inputs
    kernel = (function.kh, function.kw) if hasattr(function, "kh") else function.ksize
    geometry = geometry_of(function, kernel)
    shape = (gy.shape[1], x.shape[1] // geometry.groups, *kernel)
    if (
        not is_covered(function, geometry, shape, inputs)
        or x.shape[1] % geometry.groups
        or getattr(function, "W_shape", shape) != shape
        or geometry.output_sizes(x.shape[2:]) != gy.shape[2:]
    ):
        return NotImplemented
    function.retain_inputs((0, 1))
    gW = _provider(function, dtype).convolution_weights(
        channels_last(x), channels_last(gy), geometry
    )
    return (rounded(gW, function.W_dtype),)


def deconvolution_2d(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Deconvolution2DFunction.forward_cpu``."""
    dtype, inputs = inputs[0].dtype, in_float32(inputs)
    x, W = inputs[:2]
    if not is_covered(function, geometry_of(function, W.shape[2:]), W.shape, inputs):
        return NotImplemented
    function.retain_inputs((0, 1))
    function._calc_out_size(x.shape, W.shape)
    # Chainer sets `cover_all` here on a GPU. Its backward sets it too, but fails if it
    # wants the gradient of W alone.
    function._set_cover_all(x.shape, W.shape)
    size = function.outh, function.outw
    return (rounded(_deconvolved(function, dtype, inputs, size), dtype),)


def deconvolution_nd(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``DeconvolutionND.forward``."""
    if type(inputs[0]) is not np.ndarray:
        return gpu_convolution.deconvolution_nd(function, inputs)
    dtype, inputs = inputs[0].dtype, in_float32(inputs)
    x, W = inputs[:2]
    geometry = geometry_of(function, W.shape[2:])
    size = function.outs or geometry.input_sizes(x.shape[2:])
    if not is_covered(function, geometry, W.shape, inputs) or min(size) <= 0:
        return NotImplemented
    function.retain_inputs((0, 1))
    function.outs = size
    function._set_cover_all(x, W)
    return (rounded(_deconvolved(function, dtype, inputs, size), dtype),)


def _deconvolved(
    function: Any, dtype: np.dtype, inputs: Arrays, size: tuple[int, ...]
) -> np.ndarray:
    x, W, *b = inputs
    y = _provider(function, dtype).convolution_data(
        channels_last(x),
        np.ascontiguousarray(W),
        geometry_of(function, W.shape[2:]),
        tuple(size),
    )
    if b:
        y += b[0]
    return channels_first(y)


def _provider(function: Any, dtype: np.dtype) -> ModuleType:
    """Returns the provider for arrays of a dtype: float16 is rounded only once."""
    return providers.of(record(function)) if dtype == SINGLE else providers.active()


def is_covered(
    function: Any, geometry: Geometry, weights: tuple[int, ...], inputs: Arrays
) -> bool:
    """Returns whether providers take such arrays; Chainer reports invalid shapes."""
    return (
        are_float32(*inputs)
        and all(layout is None for layout in function.input_layouts)
        and not getattr(function, "_use_ideep", False)
        and math.prod(weights) > 0
        and weights[0] % geometry.groups == 0
        and min(geometry.stride) > 0
        and min(geometry.pad) >= 0
    )
