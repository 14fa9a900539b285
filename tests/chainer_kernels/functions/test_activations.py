"""Kernels of activations against Chainer's functions."""

import functools

import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chainer_kernels
from tests.support import kernels
from tests.support.examples import examples

SHAPES = st.lists(st.integers(0, 7), max_size=4)
# Functions, and the names of their classes.
ACTIVATIONS = {
    "relu": (F.relu, "ReLU ReLUGrad2"),
    "leaky_relu": (F.leaky_relu, "LeakyReLU _LeakyReLUGrad"),
    "leaky_relu down": (
        functools.partial(F.leaky_relu, slope=-0.5),
        "LeakyReLU _LeakyReLUGrad",
    ),
    "clipped_relu": (
        functools.partial(F.clipped_relu, z=0.5),
        "ClippedReLU ClippedReLUGrad2",
    ),
    "sigmoid": (F.sigmoid, "Sigmoid SigmoidGrad"),
    "tanh": (F.tanh, "Tanh TanhGrad"),
    "elu": (F.elu, "ELU ELUGrad"),
    "elu down": (functools.partial(F.elu, alpha=-0.5), "ELU ELUGrad"),
}


@examples(100)
@given(st.sampled_from(list(ACTIVATIONS)), SHAPES, kernels.orders, kernels.seeds)
def test_values_and_gradients(name, shape, order, seed):
    function, classes = ACTIVATIONS[name]
    x = kernels.arrays(shape, seed, order)
    kernels.check(function, [x], [f"{c}.forward_cpu" for c in classes.split()])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_numbers_without_bounds(name):
    function, _ = ACTIVATIONS[name]
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 1e30, -1e30, 1e-40], "f")
    y = function(x).array
    with chainer_kernels.disabled():
        chainers = function(x).array
    np.testing.assert_allclose(y, chainers, 1e-6, 1e-37)
    np.testing.assert_array_equal(np.signbit(y)[1:], np.signbit(chainers)[1:])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_second_derivative(name):
    kernels.check_second_derivative(
        ACTIVATIONS[name][0], [kernels.arrays((4, 5), 1) + np.float32(0.1)]
    )


def test_memory_order():
    x = kernels.arrays((2, 3, 4, 5), 1, "channels last")
    (y,), (gx,) = kernels.run(F.tanh, [x])
    assert y.strides == gx.strides == x.strides


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_float16_is_rounded_once(name):
    function, classes = ACTIVATIONS[name]
    x = kernels.arrays((3, 4, 5), 1, "channels last").astype("e")
    with kernels.called() as names:
        (y,), (gx,) = kernels.run(function, [x])
    assert names == {f"{c}.forward_cpu" for c in classes.split()}
    assert y.dtype == gx.dtype == "e"
    assert y.strides == x.strides
    exact = function(x.astype("f")).array.astype("e")
    # Numbers such as slopes are of float16, too.
    np.testing.assert_allclose(y, exact, 1e-3)
    with chainer_kernels.disabled():
        (_,), (right,) = kernels.run(function, [x])
    np.testing.assert_allclose(gx, right, 3e-3, 1e-3)
