"""Conversions between float16 and float32 against NumPy's."""

import numpy as np
import pytest

from chainer_kernels.half_precision import rounded, widened
from tests.support import kernels


def test_every_float16():
    halves = np.arange(2**16, dtype=np.uint16).view("e")
    singles = widened(halves)
    np.testing.assert_array_equal(singles, halves.astype("f"), strict=True)
    np.testing.assert_array_equal(rounded(singles, halves.dtype), halves, strict=True)


def test_rounding():
    numbers = np.geomspace(1e-9, 1e6, 99_999).astype("f")
    numbers = np.append(numbers, np.float32([65519, 65520, np.inf, np.nan]))
    with np.errstate(over="ignore"):
        right = numbers.astype("e")
    np.testing.assert_array_equal(rounded(numbers, np.dtype("e")), right)
    np.testing.assert_array_equal(rounded(-numbers, np.dtype("e")), -right)


@pytest.mark.parametrize("order", kernels.ORDERS)
def test_memory_order(order):
    single = kernels.arrays((2, 3, 4, 5), 1, order)
    half = rounded(single, np.dtype("e"))
    np.testing.assert_array_equal(half, single.astype("e"))
    np.testing.assert_array_equal(widened(half), half.astype("f"))
    if order == "channels last":
        assert widened(half).strides == single.strides
