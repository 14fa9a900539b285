"""Arrays that wait as bfloat16."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.streaming.held_in_half import HeldInHalf
from divisible.streaming.held_store import HeldStore

any_bits = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def through(store, *arrays):
    key = store.put([array.copy() for array in arrays])
    store.fetch(key)
    return store.take(key)


@given(any_bits)
def test_each_number_becomes_the_nearest_of_bfloat16(bits):
    # Infinities, NaN, subnormals, and what lies in the middle of two.
    edges = [0x7F800000, 0xFF800000, 0x7FC00001, 0x7F800001, 1, 0x3F808000, 0x3F818000]
    x = np.array([*bits, *edges], np.uint32).view(np.float32)
    (found,) = through(HeldInHalf(), x)
    with np.errstate(invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    is_number = np.isfinite(found)
    # Magnitudes in the range of normal numbers: 8 bits of precision.
    is_number &= np.abs(x) >= 2.0**-126
    error = np.abs(found[is_number] - x[is_number].astype(np.float64))
    assert (error <= 2.0**-8 * np.abs(x[is_number].astype(np.float64))).all()


@pytest.mark.parametrize("in_file", [False, True])
def test_bytes_come_back_as_they_were(in_file, tmp_path):
    rounded = np.linspace(-3, 3, 1001, dtype=np.float32)
    raw, none = np.arange(256, dtype=np.uint8), np.empty(0, np.float32)
    half = HeldInHalf(HeldStore(tmp_path) if in_file else None)
    given_arrays = [rounded.copy(), raw.copy(), none]
    key = half.put(given_arrays)
    # Nothing else holds them, so they are free.
    assert given_arrays == []
    assert half.n_bytes == 2 * 1001 + 256
    first, second, third = half.take(key)
    np.testing.assert_array_equal(second, raw)
    assert first.dtype == np.float32 and 0 < np.abs(first - rounded).max() < 2**-7
    assert third.size == 0
    # Once rounded, always rounded.
    (again,) = through(half, first)
    np.testing.assert_array_equal(again, first)
    half.put([rounded])
    half.clear()
    if not in_file:
        assert half.n_bytes == 0
    half.close()
