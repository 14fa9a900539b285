"""Kernels of batch normalization against Chainer's functions."""

from unittest import mock

import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chainer_kernels
from chainer_kernels import threads
from tests.support import kernels
from tests.support.examples import examples

TRAINED = [
    "GeneralBatchNormalizationImpl.forward",
    "GeneralBatchNormalizationImpl.backward",
]
FIXED = ["FixedBatchNormalization.forward", "FixedBatchNormalizationGrad.forward"]
# Shapes, and the axes that are added up.
SIZES = st.integers(3, 7)
SHAPES = st.one_of(
    st.tuples(st.tuples(st.integers(8, 300), st.integers(1, 70)), st.just(None)),
    st.tuples(
        st.tuples(SIZES, SIZES, SIZES, st.integers(1, 40)),
        st.sampled_from([None, (0, 2, 3), (0, 1, 2), (2, 3), (1, 2)]),
    ),
    st.tuples(
        st.tuples(st.integers(8, 20), SIZES, SIZES),
        st.sampled_from([None, 0, (0, 1), (0, 2)]),
    ),
)


def parameters(shape, axis, seed):
    """Returns a scale, a shift, a mean and a variance."""
    added = (0, *range(2, len(shape))) if axis is None else np.atleast_1d(axis)
    channels = [size for i, size in enumerate(shape) if i not in added]
    scale, shift, mean, var = kernels.arrays([4, *channels], seed)
    return scale, shift, mean, np.abs(var) + np.float32(0.1)


def are_together(shape, axis, order):
    """Returns whether the parameters' axes are neighbours in memory."""
    return not (
        order == "channels last"
        and (axis == (2, 3) or (axis == 0 and len(shape) == 3))
        or axis == (1, 2)
    )


@examples(100)
@given(SHAPES, kernels.orders, kernels.seeds, st.sampled_from([2e-5, 1e-3]))
def test_statistics_of_the_batch(case, order, seed, eps):
    shape, axis = case
    x = 3 * kernels.arrays(shape, seed, order) + 2
    scale, shift, _, _ = parameters(shape, axis, seed)
    kernels.check(
        lambda *inputs: F.batch_normalization(*inputs, axis=axis, eps=eps),
        [kernels.in_order(x, order), scale, shift],
        TRAINED if are_together(shape, axis, order) else [],
        rtol=1e-4,
        atol=3e-5,
    )


@given(SHAPES, kernels.orders, kernels.seeds)
def test_fixed_statistics(case, order, seed):
    shape, axis = case
    kernels.check(
        lambda *inputs: F.fixed_batch_normalization(*inputs, axis=axis),
        [kernels.arrays(shape, seed, order), *parameters(shape, axis, seed)],
        FIXED if are_together(shape, axis, order) else [],
        atol=3e-5,
    )


@pytest.mark.parametrize("order", ["C", "channels last"])
@pytest.mark.parametrize("shape", [(6, 5, 4, 3), (300, 5), (1, 5)])
@pytest.mark.filterwarnings("ignore:A batch with no more than one sample")
def test_running_statistics(shape, order):
    x = kernels.arrays(shape, 1, order)
    scale, shift, mean, var = parameters(shape, None, 2)

    def run():
        running = mean.copy(), var.copy()
        function = F.normalization.batch_normalization.BatchNormalization(
            1e-5, *running, decay=0.8
        )
        function.apply((x, scale, shift))
        assert function.running_mean is running[0]
        return [*running, function.mean, function.var, function.inv_std]

    with chainer_kernels.disabled():
        right = run()
    for ours, chainers in zip(run(), right):
        assert ours.dtype == chainers.dtype
        np.testing.assert_allclose(ours, chainers, 1e-5, 1e-6)


@pytest.mark.parametrize("order", ["C", "channels last"])
def test_a_mean_far_from_zero_costs_no_accuracy(order):
    x = kernels.in_order(kernels.arrays((8, 3, 9, 9), 1) + np.float32(1e4), order)
    ones, zeros = np.ones(3, "f"), np.zeros(3, "f")
    y = F.batch_normalization(x, ones, zeros).array
    exact = F.batch_normalization(x.astype("d"), ones.astype("d"), zeros.astype("d"))
    # Float32 counts in 0.001 there.
    np.testing.assert_allclose(y, exact.array, 0, 1e-3)


@pytest.mark.parametrize("order", ["C", "channels last"])
def test_memory_order_and_bits(order):
    x = kernels.arrays((40, 6, 9, 8), 1, order)
    scale, shift, _, _ = parameters(x.shape, None, 2)

    def run():
        return kernels.run(F.batch_normalization, [x, scale, shift])

    (y,), gradients = run()
    assert y.strides == gradients[0].strides == x.strides
    with (
        mock.patch.object(threads, "SMALLEST_SHARE", 1),
        mock.patch.object(threads, "blas_threads", lambda: 3),
    ):
        (y3,), gradients3 = run()
    for one, three in zip([y, *gradients], [y3, *gradients3]):
        np.testing.assert_array_equal(one, three)


def test_double_backward():
    x = kernels.arrays((8, 3, 5, 4), 1, "channels last")
    scale, shift, mean, var = parameters(x.shape, None, 2)
    for function, inputs in [
        (F.batch_normalization, [x, scale, shift]),
        (F.fixed_batch_normalization, [x, scale, shift, mean, var]),
    ]:
        kernels.check_second_derivative(function, inputs)


@pytest.mark.parametrize("order", ["C", "channels last"])
def test_float16_is_computed_in_float32(order):
    half = kernels.in_order(kernels.arrays((8, 3, 5, 4), 1).astype("e"), order)
    scale, shift, mean, var = parameters(half.shape, None, 2)
    for function, rest, names in [
        (F.batch_normalization, [scale, shift], TRAINED),
        (F.fixed_batch_normalization, [scale, shift, mean, var], FIXED),
    ]:
        with kernels.called() as found:
            (y,), gradients = kernels.run(function, [half, *rest])
        assert found >= set(names)
        (right,), rights = kernels.run(function, [half.astype("f"), *rest])
        np.testing.assert_array_equal(y, right.astype("e"), strict=True)
        assert gradients[0].dtype == "e"
        for gradient, exact in zip(gradients, rights):
            np.testing.assert_allclose(gradient, exact, 1e-2, 1e-2)
