"""Rounding of float32 to bfloat16 against ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as of_numpy

from chainer_kernels.bfloat16 import narrowed, rounded
from tests.support import kernels

bits = of_numpy.arrays(np.uint32, of_numpy.array_shapes(min_dims=0, min_side=0))


def right(array):
    with np.errstate(invalid="ignore"):
        return array.astype(ml_dtypes.bfloat16)


def assert_same(array, expected):
    """Compares numbers by their bits, and what is no number by being none."""
    is_nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(array.astype(np.float32)), is_nan)
    same = array[~is_nan].tobytes() == expected[~is_nan].tobytes()
    assert same, (array, expected)


@given(bits)
def test_every_float32(bits):
    array = bits.view(np.float32)
    codes = narrowed(array)
    assert_same(codes.view(ml_dtypes.bfloat16), right(array))
    singles = rounded(array)
    assert singles.dtype == np.float32
    assert_same(singles, right(array).astype(np.float32))
    assert_same(rounded(codes), singles)


SPECIAL = [0, 1 << 15, 0x3F808000, 0x3F818000, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000]
SPECIAL += [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 1, 0x007FFFFF, 0x00008000, 0x80018000]


@pytest.mark.parametrize("bits", SPECIAL)
def test_ties_infinities_subnormals_and_what_is_no_number(bits):
    array = np.array([bits], np.uint32).view(np.float32)
    assert_same(narrowed(array).view(ml_dtypes.bfloat16), right(array))
    assert_same(rounded(array), right(array).astype(np.float32))


@pytest.mark.parametrize("order", kernels.ORDERS)
def test_memory_orders(order):
    array = kernels.arrays((3, 4, 5, 6), 0, order)
    codes = narrowed(array)
    np.testing.assert_array_equal(codes.view(ml_dtypes.bfloat16), right(array))
    assert codes.transpose(np.argsort(codes.strides)[::-1]).flags.c_contiguous
    assert narrowed(array.reshape(12, 30).copy().T).flags.f_contiguous
    assert narrowed(codes) is codes
