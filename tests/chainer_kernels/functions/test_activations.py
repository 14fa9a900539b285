"""Kernels of activations against Chainer's functions."""

import chainer.functions as F
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import chainer_kernels
from tests.support import kernels

SHAPES = st.lists(st.integers(0, 7), min_size=1, max_size=4)


@given(SHAPES, kernels.orders, kernels.seeds)
def test_relu(shape, order, seed):
    x = kernels.arrays(shape, seed, order)
    kernels.check(F.relu, [x], ["ReLU.forward_cpu", "ReLUGrad2.forward_cpu"])


def test_relu_of_what_is_no_number():
    x = np.array([np.nan, np.inf, -np.inf, -0.0], "f")
    y = F.relu(x).array
    with chainer_kernels.disabled():
        np.testing.assert_array_equal(y, F.relu(x).array)
