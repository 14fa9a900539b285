"""Contributions to gradients of parameters, against what Chainer's backward returns."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_kernels
from chainer_kernels.catalogue import weights_of
from chainer_kernels.contributions import Scratch
from chainer_kernels.functions import weight_gradients
from tests.support import kernels


def linear(dtype="f"):
    x, W, b = (kernels.arrays(shape, 1) for shape in ((200, 7), (300, 7), (300,)))
    return F.linear, [a.astype(dtype) for a in (x, W, b)]


def convolution(order="C", **options):
    shapes = (8, 4, 13, 13), (40, 4 // options.get("groups", 1), 3, 3), (40,)
    x, W, b = (kernels.arrays(shape, 2) for shape in shapes)
    return lambda *arrays: F.convolution_2d(*arrays, pad=1, **options), [
        kernels.in_order(x, order),
        W,
        b,
    ]


def convolution_1d():
    shapes = (40, 3, 30), (40, 3, 5), (40,)
    return F.convolution_nd, [kernels.arrays(shape, 3) for shape in shapes]


CASES = [
    linear,
    convolution,
    lambda: convolution("channels last"),
    lambda: convolution(stride=2, groups=2),
    convolution_1d,
]


def graph(function, arrays):
    """Returns the output, its node, what to add by position, and output gradient."""
    variables = [chainer.Variable(arrays[0]), *map(chainer.Parameter, arrays[1:])]
    y = function(*variables)
    y.grad = np.random.RandomState(4).normal(size=y.shape).astype(y.dtype)
    rule = weights_of(type(y.creator))
    parameters = dict(enumerate(variables[1:], 1))
    return y, parameters, rule(y.creator, parameters, y.grad)


@pytest.mark.parametrize("case", CASES)
def test_first_equals_chainers_bit_for_bit_and_later_ones_add(case):
    y, parameters, added = graph(*case())
    assert added.keys() == parameters.keys()
    y.backward()
    scratch = Scratch()
    for i, parameter in parameters.items():
        out = np.full(parameter.shape, np.nan, "f")
        added[i].write(out)
        np.testing.assert_array_equal(out, parameter.grad)
        added[i].add(out, scratch)
        scale = np.abs(out).max()
        np.testing.assert_allclose(out, 2 * parameter.grad, 1e-5, 1e-6 * scale)


def test_float16_is_added_up_in_float32():
    y, parameters, added = graph(*linear("e"))
    for i, parameter in parameters.items():
        out = np.empty(parameter.shape, "f")
        added[i].write(out)
        right = y.grad.astype("d")
        right = right.sum(0) if i == 2 else right.T @ y.creator.inputs[0].data
        np.testing.assert_allclose(out, right, 1e-4, 1e-4)


def test_what_is_not_asked_for_is_left_out():
    function, (x, W, b) = convolution()
    y = function(x, chainer.Parameter(W), chainer.Parameter(b))
    gy = np.ones_like(y.array)
    node = y.creator
    assert weight_gradients.convolution(node, {}, gy) == {}
    assert weight_gradients.convolution(node, {2: b}, gy).keys() == {2}
    with chainer_kernels.disabled():
        assert weight_gradients.convolution(node, {1: W, 2: b}, gy) == {}
    with chainer.using_config("use_ideep", "auto"):
        assert weight_gradients.convolution(node, {1: W, 2: b}, gy) == {}
    assert weight_gradients.convolution(node, {1: W}, gy.astype("d")) == {}
