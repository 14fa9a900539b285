"""Means of numbers that count differently much, to the last bit."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from divisible.weighted_means import RunningMeans, weighted_mean

NUMBERS = st.floats(-1e3, 1e3, width=32)
PAIRS = st.lists(st.tuples(NUMBERS, st.integers(0, 50)), min_size=1, max_size=7)


@given(PAIRS)
def test_a_mean_is_weighted_by_shares(pairs):
    values, weights = map(list, zip(*pairs))
    found = weighted_mean(values, weights)
    if sum(weights):
        expected = sum([n / sum(weights) * y for y, n in pairs if n])
        assert math.isclose(found, np.average(values, weights=weights), abs_tol=1e-9)
    else:
        expected = sum(values) / len(values)
    assert found == expected


@given(PAIRS)
def test_running_means_may_be_added_up_in_parts(pairs):
    whole, parts = RunningMeans(), [RunningMeans(), RunningMeans()]
    for i, (value, weight) in enumerate(pairs):
        whole.add("loss", value, weight)
        parts[i % 2].add("loss", value, weight)
    joined = RunningMeans()
    for part in parts:
        joined.add_sums(part.sums)
    expected = whole.result(of_nothing={"loss": 7.0})
    found = joined.result(of_nothing={"loss": 7.0})
    assert math.isclose(found["loss"], expected["loss"], rel_tol=1e-9, abs_tol=1e-9)
    if not sum(weight for _, weight in pairs):
        assert expected == {"loss": 7.0} and whole.result() == {"loss": 0.0}


def test_what_counts_nothing_may_be_no_number():
    means = RunningMeans()
    means.add("loss", math.nan, 0)
    means.add("loss", 3.0, 2)
    assert means.result() == {"loss": 3.0}
    assert weighted_mean([math.nan, 3.0], [0, 2]) == 3.0
    assert weighted_mean([], []) == 0.0
