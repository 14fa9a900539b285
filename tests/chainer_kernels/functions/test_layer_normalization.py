"""Kernels of layer normalization against Chainer's functions."""

import chainer.functions as F
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support import kernels

KERNELS = ["LayerNormalization.forward", "LayerNormalization.backward"]


def inputs(shape, seed, order="C"):
    x = 3 * kernels.arrays(shape, seed, order) + 2
    scale, shift = kernels.arrays((2, shape[1]), seed)
    return [kernels.in_order(x, order), scale, shift]


@given(
    st.tuples(st.integers(1, 200), st.integers(8, 90)),
    kernels.orders,
    kernels.seeds,
    st.sampled_from([1e-5, 1e-2]),
)
def test_values_and_gradients(shape, order, seed, eps):
    kernels.check(
        lambda *arrays: F.layer_normalization(*arrays, eps=eps),
        inputs(shape, seed, order),
        KERNELS,
        rtol=1e-4,
        atol=3e-5,
    )


@given(st.tuples(st.integers(1, 90), st.integers(2, 90)), kernels.orders, kernels.seeds)
def test_float16_is_rounded_once(shape, order, seed):
    halves = [a.astype("e") for a in inputs(shape, seed)]
    halves[0] = kernels.in_order(halves[0], order)
    kernels.check_float16(F.layer_normalization, halves, KERNELS)


def test_second_derivative():
    kernels.check_second_derivative(F.layer_normalization, inputs((7, 9), 1))


def test_bits():
    arrays = inputs((700, 65), 1)
    once, again = (kernels.run(F.layer_normalization, arrays) for _ in range(2))
    for one, two in zip([*once[0], *once[1]], [*again[0], *again[1]]):
        np.testing.assert_array_equal(one, two)


def test_empty():
    x, scale, shift = inputs((0, 5), 1)
    assert F.layer_normalization(x, scale, shift).shape == (0, 5)
