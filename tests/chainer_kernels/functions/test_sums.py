"""Kernels of sums against Chainer's function."""

import math
from unittest import mock

import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels.functions import sums
from tests.support import kernels


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.data(),
    kernels.orders,
    kernels.seeds,
    st.booleans(),
)
def test_any_axes(shape, data, order, seed, keepdims):
    axes = st.integers(-len(shape), len(shape) - 1)
    added = data.draw(st.lists(axes, unique_by=lambda axis: axis % len(shape)))
    is_covered = (
        order == "C"
        and {axis % len(shape) for axis in added} == set(range(len(added)))
        and len(added) < len(shape)
        and math.prod(shape[: len(added)]) > 1
    )
    with mock.patch.object(sums, "SMALLEST", 1):
        kernels.check(
            lambda x: F.sum(x, axis=tuple(added), keepdims=keepdims),
            [kernels.arrays(shape, seed, order)],
            ["Sum.forward"] if is_covered else [],
        )


def test_small_arrays_are_left_to_chainer():
    for shape in ((100, 300), (200, 300)):
        with kernels.called() as names:
            F.sum(kernels.arrays(shape, 1), axis=0)
        assert names == ({"Sum.forward"} if shape[0] == 200 else set())


@pytest.mark.parametrize(
    "shape, axis",
    [((8, 16, 20, 20), (0, 2, 3)), ((1000, 50), 0), ((20, 60, 50), (0, 1))],
)
def test_gradients_of_biases(shape, axis):
    order = "channels last" if len(shape) == 4 else "C"
    # NumPy adds float32 row by row: sums of equal numbers end at 2^24 of them.
    x = kernels.arrays(shape, 1, order) + np.float32(100)
    kernels.check(lambda x: F.sum(x, axis=axis), [x], ["Sum.forward"], rtol=1e-6)
