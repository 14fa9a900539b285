"""Kernels of group normalization against Chainer's functions."""

import contextlib

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chainer_kernels
from tests.support import kernels
from tests.support.examples import examples

KERNELS = ["GroupNormalization.forward", "GroupNormalization.backward"]


def inputs(shape, seed, order="C"):
    x = 3 * kernels.arrays(shape, seed, order) + 2
    scale, shift = kernels.arrays((2, shape[1]), seed)
    return [kernels.in_order(x, order), scale, shift]


@examples(100)
@given(
    st.lists(st.integers(3, 6), min_size=2, max_size=2),
    st.integers(1, 4),
    st.integers(8, 12),
    kernels.orders,
    kernels.seeds,
)
def test_values_and_gradients(sizes, groups, in_group, order, seed):
    shape = (sizes[0], groups * in_group, *sizes)
    for sliced in (shape, shape[:2], shape[:3]):
        kernels.check(
            lambda x, gamma, beta: F.group_normalization(x, groups, gamma, beta),
            inputs(sliced, seed, order),
            KERNELS,
            rtol=1e-4,
            atol=3e-5,
        )


@given(
    st.tuples(st.integers(1, 4), st.just(12), st.integers(1, 5)),
    st.sampled_from([1, 3]),
    st.sampled_from(["e", "f"]),
    kernels.orders,
    kernels.seeds,
)
def test_float16_is_rounded_once(shape, groups, dtype, order, seed):
    x, scale, shift = inputs(shape, seed)
    halves = [kernels.in_order(x.astype("e"), order)]
    halves += [scale.astype(dtype), shift.astype(dtype)]
    kernels.check_float16(
        lambda x, gamma, beta: F.group_normalization(x, groups, gamma, beta),
        halves,
        KERNELS,
    )


@pytest.mark.parametrize("ours_first", [True, False])
def test_one_way_is_chainers_in_float16(ours_first):
    """Whoever was first leaves what the other needs."""
    x, scale, shift = (chainer.Variable(a.astype("e")) for a in inputs((3, 12, 5), 1))
    with contextlib.nullcontext() if ours_first else chainer_kernels.disabled():
        y = F.group_normalization(x, 3, scale, shift)
    gy = chainer.Variable(kernels.arrays(y.shape, 2).astype("e"))
    with chainer_kernels.disabled() if ours_first else contextlib.nullcontext():
        found = chainer.grad([y], [x, scale, shift], [gy])
    right = chainer.grad([F.group_normalization(x, 3, scale, shift)], [x], [gy])
    assert {g.dtype.char for g in found} == {"e"}
    np.testing.assert_allclose(found[0].array, right[0].array, 2e-2, 2e-2)


@pytest.mark.parametrize("order", ["C", "channels last"])
def test_memory_order(order):
    x, scale, shift = inputs((3, 4, 5, 6), 1, order)
    (y,), (gx, _, _) = kernels.run(
        lambda *arrays: F.group_normalization(arrays[0], 2, *arrays[1:]),
        [x, scale, shift],
    )
    assert y.strides == gx.strides == x.strides


def test_second_derivative():
    kernels.check_second_derivative(
        lambda x, gamma, beta: F.group_normalization(x, 2, gamma, beta),
        inputs((3, 4, 5, 6), 1, "channels last"),
    )


def test_wrong_number_of_groups_is_refused_as_by_chainer():
    with pytest.raises(ValueError, match="not divisible"):
        F.group_normalization(*inputs((3, 4, 5), 1)[:1], 3, *inputs((3, 4, 5), 1)[1:])
