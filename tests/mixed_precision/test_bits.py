"""Conversions of float16 by bits, and the passes over flat buffers."""

import numpy as np
import pytest

from mixed_precision import _cpu

EVERY_HALF = np.arange(65536, dtype=np.uint16)


def test_every_float16_widens():
    values = np.empty(65536, np.float32)
    _cpu.widen(EVERY_HALF, values)
    expected = EVERY_HALF.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32))


def float32_samples():
    """Random bits, and both neighbours of every float16 and of every tie."""
    rng = np.random.RandomState(0)
    random = rng.randint(0, 2**32, 1_000_000, dtype=np.uint64).astype(np.uint32)
    halves = EVERY_HALF.view(np.float16).astype(np.float32)
    # Ties have one bit more than float16.
    ties = halves.view(np.uint32) | 0x1000
    small = np.arange(-2050, 2051, dtype=np.float32) * np.float32(2.0**-25)
    exact = np.concatenate([halves, ties.view(np.float32), small])
    with np.errstate(invalid="ignore"):
        below, above = np.nextafter(exact, -np.inf), np.nextafter(exact, np.inf)
    return np.concatenate([random.view(np.float32), exact, below, above])


def test_float16_rounds_to_nearest_even():
    values = float32_samples()
    half = np.empty(values.size, np.uint16)
    _cpu.round_to_half(values, half)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16)
    rounded = half.view(np.float16)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(half[number], expected.view(np.uint16)[number])
    assert np.isnan(rounded[~number]).all()


@pytest.mark.parametrize("inverse", [1, 2.0**-10, 2.0**3])
def test_unscale_every_float16(inverse):
    finite = EVERY_HALF[np.isfinite(EVERY_HALF.view(np.float16))]
    n = finite.size
    gradients, sums = np.empty(n, np.float32), np.empty(2)
    starts, ends = np.array([0, 100]), np.array([100, n])
    none = np.empty(0, np.uint16), np.empty(0, np.float32)
    _cpu.unscale_half(finite, np.float32(inverse), gradients, *none, starts, ends, sums)
    expected = finite.view(np.float16).astype(np.float32) * np.float32(inverse)
    np.testing.assert_array_equal(gradients, expected)
    squares = expected.astype(np.float64) ** 2
    np.testing.assert_allclose(sums, [squares[:100].sum(), squares[100:].sum()])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", [0, 63, 64, 999])
def test_every_number_that_is_not_finite_is_seen(bad, where):
    half = np.full(1000, 6e4, np.float16)
    half[where] = bad
    sums = np.empty(1)
    none = np.empty(0, np.uint16), np.empty(0, np.float32)
    _cpu.unscale_half(
        half.view(np.uint16),
        np.float32(1),
        np.empty(1000, np.float32),
        *none,
        np.array([0]),
        np.array([1000]),
        sums,
    )
    assert not np.isfinite(sums[0])
    single = half.astype(np.float32)
    single[single == np.float32(6e4)] = np.finfo(np.float32).max
    sums[0] = 0
    _cpu.unscale(single, np.float32(1), np.array([0]), np.array([1000]), sums)
    assert not np.isfinite(sums[0])


def test_large_float32_gradients_are_finite():
    single = np.full(1000, np.finfo(np.float32).max)
    sums = np.empty(1)
    _cpu.unscale(single, np.float32(1), np.array([0]), np.array([1000]), sums)
    assert np.isfinite(sums[0])
