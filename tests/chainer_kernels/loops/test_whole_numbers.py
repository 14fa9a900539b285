"""Rounding to whole numbers, and what sums of them stand for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels.loops import whole_numbers as loops

sizes = st.integers(0, 70)


@given(sizes, sizes, st.integers(0, 2**32 - 1), st.integers(0, 255))
def test_to_whole_is_as_numpy_rounds(n, k, seed, zero):
    random = np.random.RandomState(seed)
    scale = np.float32(random.uniform(1e-3, 2))
    x = np.asarray(random.standard_normal((n, k)) * 100, "f")
    # Halves go up.
    x[:, ::3] = (random.randint(-300, 300, x[:, ::3].shape) + 0.5) * scale
    whole, scales = np.empty(x.shape, np.uint8), np.empty(n, np.float32)
    sums = np.empty(n, np.int32)
    loops.to_whole(x, whole, scales, sums, scale, zero, 255)
    expected = np.floor(x / scale + np.float32(0.5)) + np.float32(zero)
    np.testing.assert_array_equal(whole, expected.clip(0, 255))
    np.testing.assert_array_equal(sums, (whole.astype(int) - zero).sum(axis=1))
    np.testing.assert_array_equal(scales, np.full(n, scale))


def test_what_is_no_number_and_what_is_infinite():
    x = np.array([[1, np.nan, 2], [np.inf, -np.inf, 3e38], [1, 2, 3]], "f")
    whole, scales = np.empty(x.shape, np.uint8), np.empty(3, np.float32)
    loops.to_whole(x, whole, scales, np.empty(3, np.int32), np.float32(0.5), 4, 15)
    np.testing.assert_array_equal(scales, np.float32([np.nan, 0.5, 0.5]))
    np.testing.assert_array_equal(whole[1:], [[15, 0, 15], [6, 8, 10]])


def test_parts_are_added_as_whole_numbers():
    part = np.arange(-(2**24), 2**24 + 1, 2**20).astype(np.float32)
    sums = np.full(part.size, 2**30 + 1, np.int32)
    loops.add_to_sums(part, sums)
    np.testing.assert_array_equal(sums, 2**30 + 1 + part.astype(int))


def test_sums_of_rows():
    whole = np.full((3, 1000), -128, np.int8)
    whole[1], whole[2, 7] = 127, 3
    sums = np.empty(3, np.int32)
    loops.sums_of_rows(whole, sums)
    np.testing.assert_array_equal(sums, whole.sum(axis=1, dtype=int))


@given(sizes, sizes, st.integers(0, 2**32 - 1))
def test_from_sums(n, m, seed):
    random = np.random.RandomState(seed)
    sums = random.randint(-(2**29), 2**29, (n, m)).astype(np.int32)
    row_sums = random.randint(-(2**22), 2**22, n).astype(np.int32)
    zeros = random.randint(-128, 128, m).astype(np.int32)
    W_sums = random.randint(-(2**20), 2**20, m).astype(np.int32)
    scales, W_scales, b = (random.uniform(0, 1, k).astype("f") for k in (n, m, m))
    totals = sums.astype(np.int64) - 200 * W_sums.astype(np.int64)
    totals -= row_sums[:, None].astype(np.int64) * zeros
    expected = totals * scales[:, None].astype(float) * W_scales + b
    loops.from_sums(sums, scales, row_sums, 200, W_scales, zeros, W_sums, b)
    np.testing.assert_allclose(sums.view(np.float32), expected, rtol=1e-6, atol=1e-6)
