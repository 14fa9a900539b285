"""The shapes that Chainer's functions return, and the arrays that they hold.

Functions that view arrays or compute elementwise run Chainer's own code, on arrays
without numbers (`shape_arrays`). The others have a rule here, which sets what the
function holds for its backward, and returns its outputs::

    retain_inputs, retain_outputs     as the function does
    attributes                        masks, indexes and statistics, without numbers
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from chainer import FunctionNode
from chainer.function import FunctionAdapter
from chainer.functions.activation.elu import ELU
from chainer.functions.activation.leaky_relu import LeakyReLU
from chainer.functions.activation.prelu import PReLUFunction
from chainer.functions.array.resize_images import ResizeImages
from chainer.functions.connection.bilinear import BilinearFunction
from chainer.functions.connection.convolution_2d import Convolution2DFunction
from chainer.functions.connection.convolution_nd import ConvolutionND
from chainer.functions.connection.deconvolution_2d import Deconvolution2DFunction
from chainer.functions.connection.deconvolution_nd import DeconvolutionND
from chainer.functions.connection.embed_id import EmbedIDFunction
from chainer.functions.connection.linear import LinearFunction
from chainer.functions.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from chainer.functions.noise.dropout import Dropout
from chainer.functions.normalization.batch_normalization import (
    BatchNormalization,
    FixedBatchNormalization,
)
from chainer.functions.normalization.group_normalization import GroupNormalization
from chainer.functions.normalization.local_response_normalization import (
    LocalResponseNormalization,
)
from chainer.functions.pooling.average_pooling_2d import AveragePooling2D
from chainer.functions.pooling.average_pooling_nd import AveragePoolingND
from chainer.functions.pooling.max_pooling_nd import MaxPoolingND
from chainer.functions.pooling.unpooling_2d import Unpooling2D
from chainer.functions.pooling.unpooling_nd import UnpoolingND
from chainer.functions.pooling.upsampling_2d import Upsampling2D

from chainer_kernels import switch
from chainer_kernels.geometry import geometry_of, pooling_geometry
from divisible.planning.shape_arrays import NoNumbersError, ShapeArray

Arrays = tuple[ShapeArray, ...]

# Modules of Chainer whose functions run on arrays without numbers, below
# chainer.functions; and those among them that fill new arrays from numbers.
_RUN = ("activation.", "array.", "loss.", "math.", "rnn.lstm", "rnn.slstm")
_RUN += ("rnn.tree_lstm", "normalization.l2_", "normalization.layer_")
_FILL = ("array.im2col", "array.pad_sequence", "array.scatter_add")
_FILL += ("array.spatial_transformer", "loss.crf1d", "loss.ctc")


def shapes_of(function: FunctionNode, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the outputs of a function as arrays without numbers.

    Args:
        function: Function of a graph, in place of whose ``forward`` this is called.
        inputs: Its inputs; those that have numbers are not read.

    Raises:
        NoNumbersError: If the shapes of this function are not known.
    """
    arrays = tuple(ShapeArray.of(array) for array in inputs)
    rule = _RULES.get(type(function))
    if rule is not None:
        return rule(function, *arrays)
    # A function of another library finds them by itself.
    own = getattr(function, "traced_outputs", None)
    if own is not None:
        return own(arrays)
    is_old = type(function) is FunctionAdapter
    kind = type(function.function if is_old else function)
    package, _, module = kind.__module__.partition(".functions.")
    if package != "chainer" or not module.startswith(_RUN) or module.startswith(_FILL):
        raise NoNumbersError(f"the shapes of the function {kind.__name__} are unknown")
    with switch.disabled():
        outputs = type(function).forward(function, arrays)
    # Functions make arrays of single numbers, such as losses, from NumPy's own.
    return tuple(each if each is None else ShapeArray.of(each) for each in outputs)


def _like(array: Any, shape: Any = None) -> ShapeArray:
    shape = array.shape if shape is None else shape
    # Pooling and its like keep the order of the channels in memory.
    order = array.channels_last and len(shape) == array.ndim
    return ShapeArray(shape, array.dtype, order)


def _channels_last(x: Any, *shape: int) -> ShapeArray:
    return ShapeArray(shape, x.dtype, channels_last=True)


def _elu(function: Any, x: Any) -> Arrays:
    if function.alpha < 0:
        function.retain_inputs((0,))
    function.retain_outputs((0,))
    return (_like(x),)


def _leaky_relu(function: Any, x: Any) -> Arrays:
    is_output = function.slope >= 0
    (function.retain_outputs if is_output else function.retain_inputs)((0,))
    return (_like(x),)


def _prelu(function: Any, x: Any, W: Any) -> Arrays:
    function.retain_inputs((0, 1))
    return (_like(x),)


def _resized(function: Any, x: Any) -> Arrays:
    function._in_shape = x.shape
    return (_like(x, (*x.shape[:2], function.out_H, function.out_W)),)


def _linear(function: Any, x: Any, W: Any, *b: Any) -> Arrays:
    function.retain_inputs((0, 1))
    return (_like(x, (len(x), len(W))),)


def _bilinear(function: Any, e1: Any, e2: Any, W: Any, *rest: Any) -> Arrays:
    function.retain_inputs(tuple(range(3 + len(rest))))
    return (_like(e1, (len(e1), W.shape[2])),)


def _convolution(function: Any, x: Any, W: Any, *b: Any) -> Arrays:
    function.retain_inputs((0, 1))
    sizes = geometry_of(function, W.shape[2:]).output_sizes(x.shape[2:])
    return (_channels_last(x, len(x), len(W), *_positive(function, sizes)),)


def _deconvolution_2d(function: Any, x: Any, W: Any, *b: Any) -> Arrays:
    function.retain_inputs((0, 1))
    function._calc_out_size(x.shape, W.shape)
    return _deconvolved(function, x, W, (function.outh, function.outw))


def _deconvolution_nd(function: Any, x: Any, W: Any, *b: Any) -> Arrays:
    function.retain_inputs((0, 1))
    geometry = geometry_of(function, W.shape[2:])._replace(cover_all=False)
    function.outs = function.outs or geometry.input_sizes(x.shape[2:])
    return _deconvolved(function, x, W, function.outs)


def _deconvolved(function: Any, x: Any, W: Any, sizes: tuple[int, ...]) -> Arrays:
    channels = W.shape[1] * function.groups
    return (_channels_last(x, len(x), channels, *_positive(function, sizes)),)


def _embedding(function: Any, x: Any, W: Any) -> Arrays:
    function.retain_inputs((0,))
    function._w_shape = W.shape
    return (_like(W, (*x.shape, W.shape[1])),)


def _max_pooling(function: Any, x: Any) -> Arrays:
    y = _pooled(function, x)
    function._in_shape, function._in_dtype = x.shape, x.dtype
    function.indexes = ShapeArray(y.shape, np.int64)
    return (y,)


def _average_pooling(function: Any, x: Any) -> Arrays:
    y = _pooled(function, x)
    function._in_shape, function._in_dtype = x.shape, x.dtype
    return (y,)


def _pooled(function: Any, x: Any) -> ShapeArray:
    geometry = pooling_geometry(function)
    if isinstance(function, AveragePooling2D):
        geometry = geometry._replace(cover_all=False)
    sizes = geometry.output_sizes(x.shape[2:])
    return _like(x, (*x.shape[:2], *_positive(function, sizes)))


def _unpooling_2d(function: Any, x: Any) -> Arrays:
    found = pooling_geometry(function).input_sizes(x.shape[2:])
    asked = function.outh, function.outw
    sizes = tuple(b if a is None else a for a, b in zip(asked, found))
    function.outh, function.outw = sizes
    function._in_dtype = x.dtype
    return (_like(x, (*x.shape[:2], *sizes)),)


def _unpooling_nd(function: Any, x: Any) -> Arrays:
    function.retain_inputs(())
    function.outs = function.outs or pooling_geometry(function).input_sizes(x.shape[2:])
    return (_like(x, (*x.shape[:2], *function.outs)),)


def _positive(function: Any, sizes: tuple[int, ...]) -> tuple[int, ...]:
    if min(sizes) < 1:
        raise ValueError(f"{function.label} would return images of the sizes {sizes}")
    return sizes


def _batch_normalization(function: Any, x: Any, gamma: Any, beta: Any) -> Arrays:
    function.retain_inputs((0, 1))
    function.mean, function.var, function.inv_std = map(_like, (gamma,) * 3)
    return (_like(x),)


def _fixed_batch_normalization(function: Any, x: Any, gamma: Any, *_: Any) -> Arrays:
    function.retain_inputs((0, 1, 3, 4))
    function.inv_std, function.inv_var = map(_like, (gamma,) * 2)
    return (_like(x),)


def _group_normalization(function: Any, x: Any, gamma: Any, beta: Any) -> Arrays:
    function.retain_inputs((0, 1))
    statistics = ShapeArray(len(x) * function.groups, x.dtype)
    function.mean, function.inv_std = statistics, statistics.copy()
    return (_like(x),)


def _local_response_normalization(function: Any, x: Any) -> Arrays:
    function.retain_inputs((0,))
    function.retain_outputs((0,))
    function.unit_scale, function.scale = _like(x), _like(x)
    return (_like(x),)


def _dropout(function: Any, x: Any) -> Arrays:
    if function.mask is None:
        function.mask = _like(x)
    return (_like(x),)


def _softmax_cross_entropy(function: Any, x: Any, t: Any) -> Arrays:
    function.retain_inputs((0, 1))
    function.soft_target = t.dtype.kind == "f"
    if function.cache_score:
        function.y = _like(x)
    function._coeff = 1.0
    shape = (len(x), *x.shape[2:]) if function.reduce == "no" else ()
    return (_like(x, shape),)


_RULES: dict[type, Callable[..., Arrays]] = {
    AveragePooling2D: _average_pooling,
    AveragePoolingND: _average_pooling,
    BatchNormalization: _batch_normalization,
    BilinearFunction: _bilinear,
    Convolution2DFunction: _convolution,
    ConvolutionND: _convolution,
    Deconvolution2DFunction: _deconvolution_2d,
    DeconvolutionND: _deconvolution_nd,
    Dropout: _dropout,
    ELU: _elu,
    EmbedIDFunction: _embedding,
    FixedBatchNormalization: _fixed_batch_normalization,
    GroupNormalization: _group_normalization,
    LeakyReLU: _leaky_relu,
    LinearFunction: _linear,
    LocalResponseNormalization: _local_response_normalization,
    MaxPoolingND: _max_pooling,
    PReLUFunction: _prelu,
    ResizeImages: _resized,
    SoftmaxCrossEntropy: _softmax_cross_entropy,
    Unpooling2D: _unpooling_2d,
    UnpoolingND: _unpooling_nd,
    Upsampling2D: _unpooling_2d,
}
