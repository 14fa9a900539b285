import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mixed_precision.exponent_histogram import ExponentHistogram


@given(
    st.lists(st.floats(width=32), max_size=30),
    st.sampled_from([1.0, 2.0**10, 2.0**-5]),
)
def test_shares(values, scale):
    x = np.array(values, np.float32)
    histogram = ExponentHistogram()
    histogram.add(x)
    shares = histogram.shares(scale)
    exact = np.abs(x.astype(np.float64)) * scale
    n = max(1, len(values))
    nonzero = exact > 0
    # Numbers below the normal range of float32 are counted with its smallest.
    if scale > 1 and (nonzero & (np.abs(x) < 2.0**-126)).any():
        return
    assert shares == {
        "zero": (exact == 0).sum() / n,
        "below_subnormal": (nonzero & (exact < 2.0**-25)).sum() / n,
        "below_normal": (nonzero & (exact < 2.0**-14)).sum() / n,
        "overflow": (~(exact < 2.0**16)).sum() / n,
    }
    assert histogram.n == len(values)


def test_scaled_gradients_count_unscaled():
    x = np.array([0, 2.0**-10, 3.0, 100.0, np.inf], np.float16)
    histogram, unscaled = ExponentHistogram(), ExponentHistogram()
    histogram.add(x * np.float16(16), 16)
    unscaled.add(x)
    np.testing.assert_array_equal(histogram.counts, unscaled.counts)
    assert (histogram.highest, histogram.n_zeros, histogram.n_not_finite) == (6, 1, 1)


def test_numbers_that_would_vanish_in_the_division():
    """They count with the smallest, not with those next to 1."""
    histogram = ExponentHistogram()
    histogram.add(np.array([1e-44], np.float32), 1024)
    assert (histogram.highest, histogram.n_zeros) == (-126, 0)


def test_a_scale_between_powers_of_two_counts_as_the_nearer_one():
    histogram = ExponentHistogram()
    histogram.add(np.array([2.0**-24, 2.0**-25], np.float32))
    assert histogram.shares(1000) == histogram.shares(1024) != histogram.shares(512)
    assert histogram.shares(600) == histogram.shares(512)
