"""Float16 on a CPU: products and sums in float32, rounded once."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def normal(*shape):
    return np.random.RandomState(sum(shape)).normal(size=shape).astype(np.float16)


WORDS = np.arange(300) % 3
CASES = {
    "linear": (F.linear, [normal(5, 40), normal(3, 40), normal(3)]),
    "linear without bias": (F.linear, [normal(5, 40), normal(3, 40)]),
    "convolution_2d": (
        lambda x, W, b: F.convolution_2d(x, W, b, pad=1, stride=2),
        [normal(2, 4, 7, 6), normal(3, 4, 3, 3), normal(3)],
    ),
    "grouped convolution_2d": (
        lambda x, W: F.convolution_2d(x, W, groups=2, dilate=2),
        [normal(2, 4, 9, 8), normal(6, 2, 3, 3)],
    ),
    "deconvolution_2d": (
        lambda x, W, b: F.deconvolution_2d(x, W, b, stride=2),
        [normal(2, 4, 5, 4), normal(4, 3, 3, 3), normal(3)],
    ),
    "convolution_3d": (
        F.convolution_3d,
        [normal(2, 3, 5, 5, 5), normal(2, 3, 3, 3, 3)],
    ),
    "deconvolution_1d": (F.deconvolution_1d, [normal(2, 3, 9), normal(3, 4, 3)]),
    "matmul": (F.matmul, [normal(2, 6, 30), normal(2, 30, 5)]),
    "sum": (lambda x: F.sum(x, axis=0), [normal(300, 3)]),
    "sum_to": (lambda x: F.sum_to(x, (1, 3)), [normal(300, 3)]),
    "cumsum": (lambda x: F.cumsum(x, axis=0), [normal(50, 3)]),
    "logsumexp": (lambda x: F.logsumexp(x, axis=0), [normal(300, 3)]),
    "softmax": (lambda x: F.softmax(x, axis=0), [normal(300, 3)]),
    "log_softmax": (lambda x: F.log_softmax(x, axis=0), [normal(300, 3)]),
    "prelu": (F.prelu, [normal(300, 3), normal(3)]),
    "swish": (F.swish, [normal(300, 3), normal(3)]),
    "einsum": (lambda x, y: F.einsum("ij,ik->kj", x, y), [normal(300, 3)] * 2),
    "repeat": (lambda x: F.repeat(x, 300, axis=0), [normal(2, 3)]),
    "embed_id": (lambda W: F.embed_id(WORDS, W, ignore_label=1), [normal(3, 4)]),
    "get_item": (lambda x: F.get_item(x, WORDS), [normal(3, 4)]),
    "scatter_add": (
        lambda x, y: F.scatter_add(x, WORDS, y),
        [normal(3, 4), normal(300, 4)],
    ),
}


# Their gradients are computed from their outputs, which are rounded.
FROM_OUTPUTS = ("softmax", "log_softmax", "logsumexp")


def run(function, arrays):
    variables = [chainer.Variable(array) for array in arrays]
    y = function(*variables)
    y.grad = normal(*y.shape).astype(y.dtype)
    y.backward()
    return [y.array, *(x.grad for x in variables)]


@pytest.mark.parametrize("name", CASES)
def test_rounded_once(name):
    """Results and gradients are the float32 function's, rounded; nearest to exact."""
    function, arrays = CASES[name]
    actual = run(function, arrays)
    in_float32 = run(function, [a.astype(np.float32) for a in arrays])
    exact = run(function, [a.astype(np.float64) for a in arrays])
    if name in FROM_OUTPUTS:
        np.testing.assert_allclose(actual[1], exact[1], rtol=0.02, atol=1e-3)
        exact = exact[:1]
    for array, single, double in zip(actual, in_float32, exact):
        assert array.dtype == np.float16
        np.testing.assert_array_equal(array, single.astype(np.float16))
        half_spacing = np.spacing(np.abs(array)).astype(np.float64) / 2
        np.testing.assert_array_less(np.abs(array - double), half_spacing + 1e-4)


def test_frequent_words_count_as_often_as_they_come():
    """Ones added up in float16 come to 2048 and no further."""
    with chainer.using_config("dtype", np.float16):
        link = L.EmbedID(2, 3)
    for take in (link, lambda words: link.W[words]):
        y = take(np.zeros(5000, int))
        link.cleargrads()
        y.grad = np.ones_like(y.array)
        y.backward()
        np.testing.assert_array_equal(link.W.grad, [[5000] * 3, [0] * 3])


def test_overflow_is_silent_infinity():
    y = F.linear(np.full((1, 4), 300, np.float16), np.full((1, 4), 300, np.float16))
    assert np.isposinf(y.array).all()


def test_weight_keeps_its_dtype():
    x = chainer.Variable(normal(4, 3))
    W = chainer.Parameter(normal(2, 3).astype(np.float32))
    y = F.linear(x, W)
    gy = y.grad = normal(4, 2)
    y.backward()
    assert (y.dtype, x.grad.dtype, W.grad.dtype) == ("float16", "float16", "float32")
    expected = gy.astype(np.float32).T.dot(x.array.astype(np.float32))
    np.testing.assert_array_equal(W.grad, expected)


def test_layer_normalization_with_float32_scales():
    link = L.LayerNormalization(6)
    x = chainer.Variable(normal(4, 6))
    y = link(x)
    expected = link(x.array.astype(np.float32)).array.astype(np.float16)
    np.testing.assert_array_equal(y.array, expected)
    y.grad = np.ones_like(y.array)
    y.backward()
    assert (x.grad.dtype, link.gamma.grad.dtype) == ("float16", "float32")


def test_layer_normalization_of_float32_with_float16_scales():
    """It is refused, as in Chainer, rather than computed in float16."""
    with chainer.using_config("dtype", np.float16):
        link = L.LayerNormalization(6)
    with pytest.raises(chainer.utils.type_check.InvalidType):
        link(normal(4, 6).astype(np.float32))
    assert link(normal(4, 6)).dtype == np.float16


@pytest.mark.parametrize("train", [True, False])
def test_decorrelated_batch_normalization(train):
    link = L.DecorrelatedBatchNormalization(6, groups=2)
    x = chainer.Variable(normal(20, 6))
    with chainer.using_config("train", train):
        y = link(x)
        expected = link(x.array.astype(np.float32)).array.astype(np.float16)
    np.testing.assert_array_equal(y.array, expected)
    y.grad = normal(20, 6)
    y.backward()
    assert x.grad.dtype == np.float16
    assert link.avg_projection.dtype == np.float32
