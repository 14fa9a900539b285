"""Convolutions and what Chainer calls deconvolutions, of arrays of CuPy, by cuDNN.

What cuDNN does not take is left to Chainer, which makes columns of windows and
multiplies them.
"""

from __future__ import annotations

from typing import Any

from chainer_kernels.functions.gpu_choice import choice, takes
from chainer_kernels.geometry import Geometry, geometry_of
from chainer_kernels.providers import cudnn

Arrays = tuple[Any, ...]


def convolution(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``forward_gpu`` of ``Convolution2DFunction``, ``forward`` of ND's."""
    x, W, *b = inputs
    geometry = geometry_of(function, W.shape[2:])
    if (
        not _is_covered(function, geometry, len(W), inputs)
        or x.shape[1] != W.shape[1] * geometry.groups
        or getattr(function, "cudnn_fast", False)
        or min(geometry.output_sizes(x.shape[2:])) <= 0
    ):
        return NotImplemented
    y = cudnn.convolution(x, W, b[0] if b else None, geometry, choice(x))
    return _kept(function, y)


def weight_gradient(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``forward_gpu`` of ``Convolution2DGradW``, ``forward`` of ND's."""
    x, gy = inputs
    kernel = (function.kh, function.kw) if hasattr(function, "kh") else function.ksize
    geometry = geometry_of(function, kernel)
    shape = (gy.shape[1], x.shape[1] // geometry.groups, *kernel)
    if (
        not _is_covered(function, geometry, gy.shape[1], inputs)
        or function.W_dtype != x.dtype
        or getattr(function, "w_layout", None) is not None
        or getattr(function, "W_shape", shape) != shape
        or geometry.output_sizes(x.shape[2:]) != gy.shape[2:]
    ):
        return NotImplemented
    return _kept(function, cudnn.convolution_weights(x, gy, geometry, choice(x)))


def deconvolution_2d(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Deconvolution2DFunction.forward_gpu``."""
    x, W = inputs[:2]
    geometry = geometry_of(function, W.shape[2:])
    if not _is_covered(function, geometry, len(W), inputs):
        return NotImplemented
    function._calc_out_size(x.shape, W.shape)
    function._set_cover_all(x.shape, W.shape)
    return _deconvolved(function, inputs, (function.outh, function.outw))


def deconvolution_nd(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``DeconvolutionND.forward``."""
    x, W = inputs[:2]
    geometry = geometry_of(function, W.shape[2:])
    size = function.outs or geometry.input_sizes(x.shape[2:])
    if not _is_covered(function, geometry, len(W), inputs) or min(size) <= 0:
        return NotImplemented
    function.outs = size
    function._set_cover_all(x, W)
    return _deconvolved(function, inputs, size)


def _deconvolved(function: Any, inputs: Arrays, size: tuple[int, ...]) -> Arrays:
    x, W, *b = inputs
    geometry = geometry_of(function, W.shape[2:])
    # Where it covers all, windows read zeros behind the last inputs.
    if geometry.cover_all or x.shape[1] != len(W):
        return NotImplemented
    y = cudnn.convolution_data(
        x, W, b[0] if b else None, geometry, tuple(size), choice(x)
    )
    return _kept(function, y)


def _is_covered(function: Any, geometry: Geometry, outs: int, inputs: Arrays) -> bool:
    """Returns whether cuDNN has such convolutions; Chainer reports invalid shapes.

    Args:
        function: The node.
        geometry: Its geometry.
        outs: The channels of the convolution's output.
        inputs: Inputs of the node.
    """
    return (
        not geometry.cover_all
        and min(geometry.stride) > 0
        and min(geometry.pad) >= 0
        and all(layout is None for layout in function.input_layouts)
        and inputs[0].shape[1] % geometry.groups == 0
        and outs % geometry.groups == 0
        and takes(*inputs)
    )


def _kept(function: Any, y: Any) -> Arrays:
    """Returns the outputs of a function, which keeps its first two inputs."""
    if y is None:
        return NotImplemented
    function.retain_inputs((0, 1))
    return (y,)
