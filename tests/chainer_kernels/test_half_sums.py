"""Products whose sums are float16, beside NumPy."""

import numpy as np
import pytest

from chainer_kernels.half_sums import product


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 130, 5), (3, 0, 2), (0, 4, 3)])
def test_each_addition_is_rounded(shape):
    m, k, n = shape
    rng = np.random.RandomState(0)
    a = rng.exponential(size=(m, k)).astype(np.float16)
    b = rng.normal(size=(k, n)).astype(np.float16)
    expected = np.zeros((m, n), np.float16)
    for i in range(k):
        products = a[:, i, None].astype("f") * b[i].astype("f")
        expected = (expected.astype("f") + products).astype(np.float16)
    np.testing.assert_array_equal(product(a, b), expected)
    # Matrices in any memory order.
    np.testing.assert_array_equal(product(np.asfortranarray(a), b), expected)


def test_large_small_and_other_numbers():
    def sum_of(*numbers):
        row = np.array([numbers], np.float16)
        return float(product(row, np.ones((len(numbers), 1), np.float16))[0, 0])

    assert sum_of(65504, 16, -65504) == np.inf
    assert sum_of(2.0**-24, 2.0**-24) == 2.0**-23
    assert np.isnan(sum_of(np.inf, -np.inf))
    # Half of the spacing is lost each time, in this order only.
    assert sum_of(1024, 0.5, 0.5) == 1024
    assert sum_of(0.5, 0.5, 1024) == 1025


def test_other_arrays_are_refused():
    ones = np.ones((2, 2), np.float16)
    with pytest.raises(TypeError, match="float32"):
        product(ones, ones.astype("f"))
    with pytest.raises(TypeError, match="builtins.list"):
        product([[1.0]], ones)
