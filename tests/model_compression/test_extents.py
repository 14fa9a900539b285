"""Ranges of values that are seen in parts."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from model_compression.extents import extent_of, is_finite

values = st.floats(-1e6, 1e6, width=32)
several = arrays(np.float32, st.integers(1, 200), elements=values)


def joined(parts, percentile):
    extents = (extent_of(part, percentile) for part in parts if part.size)
    return functools.reduce(lambda one, other: one.joined(other), extents)


@given(several, st.lists(st.integers(0, 200)), st.floats(50.1, 100), st.randoms())
def test_parts_in_any_order_say_what_all_say(array, cuts, percentile, random):
    parts = np.split(array, sorted(cuts))
    random.shuffle(parts)
    for each in (percentile, None):
        assert joined(parts, each).ends == extent_of(array, each).ends


@given(several, st.floats(50.1, 100))
def test_ends_are_the_percentiles(array, percentile):
    expected = np.percentile(array.astype(float), [100 - percentile, percentile])
    # The values next to them may be off by the width of their bins.
    ordered = np.sort(array)
    ranks = (array.size - 1) * np.array([100 - percentile, percentile]) / 100
    nearby = ordered[np.floor(ranks).astype(int)], ordered[np.ceil(ranks).astype(int)]
    width = np.abs(nearby).max(axis=0) / 2**9 + 1e-30
    found = extent_of(array, percentile).ends
    assert (np.abs(found - expected) <= width * 1.01).all()


def test_all_values_are_between_least_and_greatest():
    array = np.array([[3, -2], [0, 1]], np.float16)
    assert extent_of(array, None).ends == extent_of(array, 100.0).ends == (-2, 3)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3e38, 3.4e38, 1e-45])
def test_equal_values_are_their_own_percentile(value):
    array = np.full(7, value, np.float32)
    assert extent_of(array, 90.0).ends == (array[0], array[0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("percentile", [None, 100.0])
def test_what_is_not_finite_is_seen_in_any_part(value, percentile):
    parts = [np.array(part, np.float32) for part in ([1, 2], [3, value], [-4])]
    for order in itertools.permutations(parts):
        assert not is_finite(joined(order, percentile))
    assert is_finite(joined([parts[0], parts[2]], percentile))
    shown = np.concatenate(parts)
    ends = joined(parts, percentile).ends
    np.testing.assert_equal(ends, (shown.min(), shown.max()))


def test_a_percentile_leaves_out_an_infinity_as_any_outlier():
    array = np.append(np.arange(99, dtype=np.float32), np.inf)
    np.testing.assert_allclose(
        extent_of(array, 90.0).ends, np.percentile(array, [10, 90]), rtol=2e-3
    )
