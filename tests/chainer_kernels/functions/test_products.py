"""Kernels of linear functions and products of matrices against Chainer's."""

from unittest import mock

import chainer.functions as F
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import chainer_kernels
from chainer_kernels import threads
from chainer_kernels.functions import products
from tests.support import kernels
from tests.support.bfloat16 import check, in_bfloat16

LINEAR = [
    "LinearFunction.forward",
    "LinearGradData.forward",
    "LinearGradWeight.forward",
]
SIZES = st.integers(0, 5)


@given(SIZES, SIZES, SIZES, kernels.orders, st.booleans(), kernels.seeds)
@example(40, 50, 60, "C", True, 0)
def test_linear(batch, n_in, n_out, order, has_bias, seed):
    shapes = [(batch, n_in), (n_out, n_in), *[(n_out,)] * has_bias]
    inputs = [kernels.arrays(shape, seed, order) for shape in shapes]
    kernels.check(F.linear, inputs, LINEAR)


@given(
    st.sampled_from([((), ()), ((2,), ()), ((), (3,)), ((2, 3), (3,)), ((0,), (0,))]),
    st.tuples(SIZES, SIZES, SIZES),
    st.booleans(),
    st.booleans(),
    kernels.orders,
    kernels.seeds,
)
@example(((4, 2), ()), (20, 30, 40), False, False, "C", 0)
@example(((4, 2), ()), (20, 30, 40), True, True, "C", 0)
def test_matmul(leading, sizes, transa, transb, order, seed):
    rows, inner, columns = sizes
    a = (inner, rows) if transa else (rows, inner)
    b = (columns, inner) if transb else (inner, columns)
    shapes = [(*leading[0], *a), (*leading[1], *b)]
    inputs = [kernels.arrays(shape, seed, order) for shape in shapes]
    kernels.check(
        lambda a, b: F.matmul(a, b, transa, transb), inputs, ["MatMul.forward"]
    )


@pytest.mark.parametrize("leading", [((5, 2), (5, 2)), ((5, 1), (2,)), ((), (3,))])
def test_stacks_on_two_cores_are_what_they_are_on_one(leading, monkeypatch):
    a = kernels.arrays((*leading[0], 40, 30), 0)
    b = kernels.arrays((*leading[1], 50, 30), 1)
    on_one = F.matmul(a, b, transb=True).array
    monkeypatch.setattr(products, "_SMALLEST_STACK", 1)
    monkeypatch.setattr(threads, "SMALLEST_SHARE", 1)
    monkeypatch.setattr(threads, "blas_threads", lambda: 2)
    shares = mock.Mock(side_effect=threads._share)
    monkeypatch.setattr(threads, "_share", shares)
    np.testing.assert_array_equal(F.matmul(a, b, transb=True).array, on_one)
    assert shares.call_count == 2


@pytest.mark.parametrize("shapes", [((4,), (4, 3)), ((3, 4), (4,)), ((4,), (4,))])
def test_vectors_are_left_to_chainer(shapes):
    inputs = [kernels.arrays(shape, 0) for shape in shapes]
    kernels.check(F.matmul, inputs, [])


def test_two_dtypes_are_left_to_chainer():
    x, W = kernels.arrays((3, 4), 0), np.ones((5, 4))
    with kernels.called() as names:
        assert F.linear(x, W).dtype == np.float32
        F.matmul(x, W, transb=True)
    assert not names


@pytest.mark.parametrize("sizes", [(3, 5, 4), (150, 130, 120)])
@in_bfloat16
def test_linear_in_bfloat16(sizes):
    batch, n_in, n_out = sizes
    check(
        F.linear, [kernels.arrays((batch, n_in), 0), kernels.arrays((n_out, n_in), 1)]
    )


@pytest.mark.parametrize("leading", [((), ()), ((2, 3), (3,)), ((4,), ())])
@pytest.mark.parametrize("is_transposed", [False, True])
@in_bfloat16
def test_matmul_in_bfloat16(leading, is_transposed):
    a, b = ((90, 70), (70, 80)) if not is_transposed else ((70, 90), (80, 70))
    check(
        lambda a, b: F.matmul(a, b, is_transposed, is_transposed),
        [
            kernels.arrays((*ahead, *s), i)
            for i, (ahead, s) in enumerate(zip(leading, (a, b)))
        ],
    )


@in_bfloat16
def test_bias_is_not_rounded():
    b = np.array([1.01], "f")
    with chainer_kernels.products("bfloat16"):
        y = F.linear(np.zeros((1, 2), "f"), np.zeros((1, 2), "f"), b)
        z = F.convolution_2d(
            np.zeros((1, 1, 3, 3), "f"), np.zeros((1, 1, 3, 3), "f"), b
        )
    assert y.array.item() == z.array.item() == b[0]
