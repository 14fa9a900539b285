"""Shares of replicas that follow their speeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.rebalancing.shares import MeasuredShares, balanced, fixed_cost

speeds = st.lists(st.floats(0.25, 4), min_size=2, max_size=5)


def settle(speeds, fixed, n_checks=12, noise=0.0, total=256):
    """Returns the samples of replicas after so many checks."""
    random, shares = np.random.RandomState(0), MeasuredShares()
    samples = np.full(len(speeds), total / len(speeds))
    for _ in range(n_checks):
        seconds = (fixed + samples) / speeds * np.exp(noise * random.randn(len(speeds)))
        wanted = shares.wanted(samples, seconds)
        if wanted is not None:
            assert sum(wanted) == pytest.approx(1)
            samples = total * np.array(wanted)
    return samples


@given(speeds, st.floats(0, 50))
def test_all_are_busy_for_the_same_time(speeds, fixed):
    samples = settle(np.array(speeds), fixed)
    seconds = (fixed + samples) / speeds
    # A replica that the fixed cost alone keeps longer has a sample.
    counted = samples > 2
    assert seconds[counted].min() > 0.85 * seconds[counted].max()
    assert (samples > 0.9).all()


def test_a_slow_replica_does_not_lose_all():
    samples = settle(np.array([1.0, 0.5]), fixed=30.0)
    # The same time for both.
    assert samples[1] == pytest.approx((256 + 60) / 3 - 30, rel=0.05)
    samples = settle(np.array([1.0, 0.5]), fixed=30.0, noise=0.05, n_checks=100)
    assert 50 < samples[1] < 110


@given(speeds, st.floats(0, 1))
def test_the_fixed_cost_is_found_from_two_sizes(speeds, part):
    n = np.full(len(speeds), 100.0)
    other = n * np.linspace(0.5, 1.5, len(speeds))
    samples, fixed = np.array([n, other]), part * other.max()
    found = fixed_cost(samples, (fixed + samples) / speeds)
    assert found == pytest.approx(fixed, abs=other.max() / 200)


def test_sizes_that_do_not_change_say_nothing():
    samples = np.array([[50.0, 50], [51, 49]])
    assert fixed_cost(samples, samples * [1, 2]) is None


@given(speeds, st.floats(0, 500))
def test_no_sample_is_lost(speeds, fixed):
    samples = np.full(len(speeds), 20.0)
    found = balanced(samples, samples / speeds, fixed)
    assert found.sum() == pytest.approx(samples.sum())
    assert (found >= 1 - 1e-9).all()
