"""Quantiles are computed of drawn elements every so many exchanges, and then kept."""

import itertools
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels import float8
from data_parallel import simulate_exchange
from data_parallel.arrays import Spec
from data_parallel.quantiles import Draw, Quantiles, largest_quantile, quantile
from data_parallel.settings import Settings

few = Settings("fp8", "oyama2017", samples=40, seed=5)


def specs(names):
    return [Spec(name, (1,), "f", False) for name in names]


def exchange(quantiles, names, found):
    """Returns the q of each array, those that are new replaced by ``found``."""
    now = quantiles.open(specs(names))
    for i, q in enumerate(now):
        now[i] = q or found
    quantiles.keep()
    return list(now)


@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 12))
def test_they_are_kept(every, n_exchanges, when_loaded):
    quantiles, expected = Quantiles(every), 0
    for number in range(n_exchanges):
        if number == when_loaded:
            other = Quantiles(every)
            other.load({name: quantiles.state(name) for name in "ab"})
            quantiles = other
        if number % every == 0:
            expected = number + 1
        assert exchange(quantiles, "ab", number + 1) == [expected] * 2


def test_a_new_array_has_its_own_at_once():
    quantiles = Quantiles(10)
    assert exchange(quantiles, "a", 1.0) == [1]
    assert exchange(quantiles, "ba", 2.0) == [2, 1]
    assert exchange(quantiles, "ab", 3.0) == [1, 2]
    assert quantiles.state("b") == {"age": 3, "q": 2}
    assert quantiles.state("c") == {"age": 3, "q": None}


def test_the_number_of_the_renewal_is_in_the_state():
    quantiles, found = Quantiles(3), []
    for _ in range(7):
        exchange(quantiles, "a", 1.0)
        found.append(quantiles.renewal)
        other = Quantiles(3)
        other.load({"a": quantiles.state("a")})
        quantiles = other
    assert found == [0, 0, 0, 1, 1, 1, 2]


def test_each_seed_rank_array_and_renewal_has_a_draw_of_its_own():
    drawn = set()
    for seed, rank, array, renewal in itertools.product(
        (0, 5), (0, 1), ("0/W", "1/W"), (0, 1)
    ):
        settings = few._replace(seed=seed)
        elements = Draw(rank, array, renewal).elements(1000, settings)
        again = Draw(rank, array, renewal).elements(1000, settings)
        np.testing.assert_array_equal(elements, again)
        assert len(set(elements)) == len(elements) == 40
        assert elements.min() >= 0 and elements.max() < 1000
        drawn.add(tuple(sorted(elements)))
    assert len(drawn) == 16


def test_a_small_array_is_used_as_a_whole():
    for n in (0, 1, 40):
        values = np.arange(n)
        assert values[Draw(0, "0", 0).elements(n, few)].tolist() == [*range(n)]


def test_renewals_reach_all_elements():
    reached = np.zeros(200, bool)
    for renewal in range(60):
        reached[Draw(0, "0", renewal).elements(200, few)] = True
    assert reached.all()


def test_draws_estimate_the_quantile():
    """The share of elements below a sampled quantile has a known mean and deviation."""
    values = np.random.RandomState(0).permutation(10_000).astype("f")
    settings = few._replace(samples=1024)
    shares = [
        quantile(values[Draw(0, "0", renewal).elements(10_000, settings)], settings)
        / 10_000
        for renewal in range(200)
    ]
    deviation = (0.95 * 0.05 / 1024) ** 0.5
    assert abs(np.mean(shares) - 0.95) < 4 * deviation / 200**0.5
    assert 0.5 * deviation < np.std(shares) < 1.2 * deviation


@pytest.mark.parametrize("renewal", [0, 3])
def test_the_scale_is_that_of_an_independent_version(renewal):
    """Lines 9 to 12 of Algorithm 1, with NumPy alone."""
    random = np.random.RandomState(renewal)
    weights = random.standard_normal((30, 20)).astype("f")
    gradients = random.standard_normal((4, 30, 20)).astype("f")
    found = []
    for rank, gradient in enumerate(gradients):
        ratios = (gradient / (np.abs(weights) + np.float32(1e-5))).ravel()
        words = [5, rank, zlib.crc32(b"fc6/W"), renewal]
        places = np.random.Generator(np.random.PCG64(words)).choice(
            600, size=40, replace=False
        )
        ordered = np.sort(np.abs(ratios[places]))
        below, part = divmod(0.95 * 39, 1)
        low, high = ordered[int(below)], ordered[int(below) + 1]
        found.append(low + (high - low) * part)
    result = simulate_exchange(
        gradients,
        strategy="oyama2017",
        exchange_dtype="fp8",
        weights=weights,
        samples=40,
        seed=5,
        array="fc6/W",
        renewal=renewal,
    )
    assert result.q == pytest.approx(max(found), rel=1e-6)
    assert len(set(found)) == 4


def test_ratios_that_are_not_finite_do_not_count():
    ratios = np.array([np.nan, -2, np.inf, 1], "f")
    assert quantile(ratios, few._replace(quantile=1)) == 2
    assert quantile(ratios[:1], few) == 0


def test_the_least_quantile_has_a_scale():
    least = np.float32(1e-45)
    q = largest_quantile([float(least)])
    assert np.isfinite(np.float32(float8.LARGEST / q))
    assert np.float32(q / float8.LARGEST) > 0
    assert largest_quantile([0.0, 2.0]) == 2
    assert largest_quantile([0.0, 0.0]) == 1
