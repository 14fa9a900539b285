from functools import partial

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible.planning.retained_arrays import BufferSet, retained_arrays
from divisible.planning.shape_arrays import NoNumbersError, ShapeArray
from divisible.planning.shape_tracing import shapes_only

VECTORS, IMAGES = (4, 6), (2, 4, 9, 7)
CALLS = {
    "linear": (lambda: L.Linear(None, 10), IMAGES),
    "convolution": (lambda: L.Convolution2D(4, 8, 3, pad=1), IMAGES),
    "strided": (lambda: L.Convolution2D(None, 8, 3, stride=2, nobias=True), IMAGES),
    "grouped": (lambda: L.Convolution2D(4, 8, 3, groups=2), IMAGES),
    "dilated": (lambda: L.DilatedConvolution2D(4, 2, 3, dilate=2), IMAGES),
    "depthwise": (lambda: L.DepthwiseConvolution2D(4, 2, 3), IMAGES),
    "convolution 1d": (lambda: L.Convolution1D(3, 8, 3, pad=2), (2, 3, 9)),
    "deconvolution": (lambda: L.Deconvolution2D(4, 8, 4, stride=2, pad=1), IMAGES),
    "deconvolution 1d": (lambda: L.Deconvolution1D(3, 8, 4, stride=2), (2, 3, 9)),
    "embedding": (lambda: L.EmbedID(100, 7), ((4, 9), np.int32)),
    "bilinear": (lambda: partial(F.bilinear, W=W, e2=ones((4, 5))), VECTORS),
    "lstm": (lambda: L.LSTM(6, 5), VECTORS),
    "gru": (lambda: L.StatefulGRU(6, 6), VECTORS),
    "batch norm": (lambda: L.BatchNormalization(4), IMAGES),
    "fixed norm": (
        lambda: lambda x: F.fixed_batch_normalization(x, *[ones(4)] * 4),
        IMAGES,
    ),
    "layer norm": (lambda: L.LayerNormalization(6), VECTORS),
    "group norm": (lambda: L.GroupNormalization(2, 4), IMAGES),
    "response norm": (lambda: F.local_response_normalization, IMAGES),
    "normalize": (lambda: F.normalize, VECTORS),
    "max pooling": (lambda: partial(F.max_pooling_2d, ksize=2), IMAGES),
    "max pooling 1d": (lambda: partial(F.max_pooling_1d, ksize=3), (2, 3, 9)),
    "average pooling": (lambda: partial(F.average_pooling_2d, ksize=2), IMAGES),
    "average pooling 3d": (
        lambda: partial(F.average_pooling_3d, ksize=2),
        (2, 3, 4, 5, 6),
    ),
    "unpooling": (lambda: partial(F.unpooling_2d, ksize=2), IMAGES),
    "unpooling 1d": (lambda: partial(F.unpooling_1d, ksize=2), (2, 3, 9)),
    "resize": (lambda: partial(F.resize_images, output_shape=(5, 11)), IMAGES),
    "dropout": (lambda: F.dropout, VECTORS),
    "relu": (lambda: F.relu, VECTORS),
    "leaky relu": (lambda: F.leaky_relu, VECTORS),
    "elu": (lambda: F.elu, VECTORS),
    "prelu": (lambda: L.PReLU(), VECTORS),
    "sigmoid": (lambda: F.sigmoid, VECTORS),
    "tanh": (lambda: F.tanh, VECTORS),
    "softplus": (lambda: F.softplus, VECTORS),
    "softmax": (lambda: F.softmax, VECTORS),
    "log softmax": (lambda: F.log_softmax, VECTORS),
    "maxout": (lambda: partial(F.maxout, pool_size=3), VECTORS),
    "concat": (lambda: lambda x: F.concat((x, x)), VECTORS),
    "split": (lambda: lambda x: F.split_axis(x, [2], 1)[1], VECTORS),
    "separate": (lambda: lambda x: F.stack(F.separate(x, 1), 1), VECTORS),
    "swapaxes": (lambda: lambda x: F.swapaxes(x, 0, 1), VECTORS),
    "reshape": (lambda: lambda x: F.reshape(x, (4, -1, 3)), VECTORS),
    "index": (lambda: lambda x: x[:, 1:] * 2 + x[:, :1] ** 2, VECTORS),
    "broadcast": (lambda: lambda x: F.broadcast_to(x[:, :1], (4, 6)), VECTORS),
    "mean": (lambda: partial(F.mean, axis=1), VECTORS),
    "max": (lambda: partial(F.max, axis=1), VECTORS),
    "matmul": (lambda: lambda x: F.matmul(x, x, transb=True), VECTORS),
    "einsum": (lambda: lambda x: F.einsum("ij,ik->jk", x, x), VECTORS),
    "where": (lambda: lambda x: F.where(x.array > 0, x, x * 2), VECTORS),
    "pad": (lambda: lambda x: F.pad(x, 1, "constant"), VECTORS),
    "cast": (lambda: lambda x: F.cast(x, np.float16), VECTORS),
    "scale": (lambda: L.Scale(1, (6,)), VECTORS),
    "highway": (lambda: L.Highway(6), VECTORS),
    "inception": (lambda: L.Inception(4, 4, 5, 6, 7, 8, 9), IMAGES),
    "depth2space": (lambda: partial(F.depth2space, r=2), IMAGES),
    "cross entropy": (lambda: lambda x: F.softmax_cross_entropy(x, labels(4)), VECTORS),
    "pixels": (lambda: lambda x: F.softmax_cross_entropy(x, labels((2, 9, 7))), IMAGES),
    "soft targets": (
        lambda: lambda x: F.softmax_cross_entropy(x, ones((4, 6))),
        VECTORS,
    ),
    "each": (
        lambda: lambda x: F.softmax_cross_entropy(x, labels(4), reduce="no"),
        VECTORS,
    ),
    "sigmoid loss": (
        lambda: lambda x: F.sigmoid_cross_entropy(x, labels((4, 6))),
        VECTORS,
    ),
    "squared": (lambda: lambda x: F.mean_squared_error(x, x * 2), VECTORS),
    "absolute": (lambda: lambda x: F.mean_absolute_error(x, x * 2), VECTORS),
    "huber": (lambda: lambda x: F.huber_loss(x, x * 2, 1.0), VECTORS),
    "hinge": (lambda: lambda x: F.hinge(x, labels(4)), VECTORS),
    "divergence": (lambda: lambda x: F.gaussian_kl_divergence(x, x), VECTORS),
}
W = np.ones((6, 5, 3), np.float32)


def ones(shape):
    return np.ones(shape, np.float32)


def labels(shape):
    return np.zeros(shape, np.int32)


def held(y):
    """Returns the bytes that the graph behind an output holds."""
    return BufferSet([*retained_arrays([y]), y.array]).nbytes


@pytest.mark.parametrize("name", CALLS)
def test_returns_and_holds_what_the_function_does(name):
    make, shape = CALLS[name]
    shape, dtype = shape if isinstance(shape[0], tuple) else (shape, np.float32)

    def variable(array):
        return chainer.Variable(array) if dtype == np.float32 else array

    expected = make()(variable(np.ones(shape, dtype)))
    with shapes_only():
        found = make()(variable(ShapeArray(shape, dtype)))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert held(found) == pytest.approx(held(expected), rel=0.1, abs=256)
    # Hooks are gone: Chainer computes again.
    assert isinstance(F.relu(np.ones(2, "f")).array, np.ndarray)
    assert not isinstance(F.relu(np.ones(2, "f")).array, ShapeArray)


@pytest.mark.parametrize("kernel", [12, 20])
def test_refuses_a_window_larger_than_the_image(kernel):
    x = ShapeArray((2, 4, 9, 7), np.float32)
    with (
        shapes_only(),
        pytest.raises(ValueError, match="would return images"),
    ):
        F.max_pooling_2d(x, kernel, cover_all=False)
    with (
        shapes_only(),
        pytest.raises(ValueError, match="would return images"),
    ):
        L.Convolution2D(4, 8, kernel)(x)


def test_checks_types_as_chainer_does():
    with shapes_only(), pytest.raises(chainer.utils.type_check.InvalidType):
        L.Linear(5, 3)(ShapeArray((2, 6), np.float32))


def test_names_functions_without_a_rule():
    with shapes_only(), pytest.raises(NoNumbersError, match="PadSequence"):
        F.pad_sequence([ShapeArray((2, 3), np.float32)] * 2)
