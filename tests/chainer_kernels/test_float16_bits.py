"""Conversions of float16 by bits."""

import numpy as np
import pytest
from numba import njit

from chainer_kernels import float16_bits
from chainer_kernels.optimizer_loops_cpu import convert

EVERY_HALF = np.arange(65536, dtype=np.uint16)


@njit
def widened_by_bits(half, values):
    for i in range(half.size):
        values[i] = float16_bits.half_to_float_by_bits(half[i])


@njit
def rounded_by_bits(values, half):
    for i in range(half.size):
        half[i] = float16_bits.float_to_half_by_bits(values[i])


@pytest.mark.parametrize("widen", [convert, widened_by_bits])
def test_every_float16_widens(widen):
    values = np.empty(65536, np.float32)
    widen(EVERY_HALF, values)
    expected = EVERY_HALF.view(np.float16).astype(np.float32)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(
        values.view(np.uint32)[number], expected.view(np.uint32)[number]
    )
    assert np.isnan(values[~number]).all()


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


@pytest.mark.parametrize("round_to_half", [convert, rounded_by_bits])
def test_float16_rounds_to_nearest_even(round_to_half):
    values = float32_samples()
    half = np.empty(values.size, np.uint16)
    round_to_half(values, half)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16)
    rounded = half.view(np.float16)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(half[number], expected.view(np.uint16)[number])
    assert np.isnan(rounded[~number]).all()
