"""Algorithm 1 at the ends of float32's range."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_parallel import oyama2017, simulate_exchange

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
pairs = st.lists(st.tuples(finite, finite), min_size=1, max_size=20)


def exchanged(gradients, weights, **options):
    return simulate_exchange(
        [np.array(each, "f") for each in gradients],
        exchange_dtype="fp8",
        strategy="oyama2017",
        weights=np.array(weights, "f"),
        **options,
    )


@given(pairs, st.floats(0.05, 1), st.sampled_from([1, 2]))
def test_what_is_finite_saturates(numbers, quantile, local_size):
    gradient, weights = np.array(numbers, "f").T
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = exchanged(
            [gradient / 2] * 2,
            weights / 2,
            quantile=quantile,
            local_size=local_size,
        )
    assert (found.codes & 0x7F <= 0x7B).all()
    assert np.isfinite(found.mean).all()
    assert not found.mean[gradient == 0].any()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_so_alone(bad):
    good = [3e38, 1.0, 0.0, -1e-40]
    with_bad = exchanged([[bad, *good], [1, *good]], [1] * 5, q=1e38)
    without = exchanged([[1, *good], [1, *good]], [1] * 5, q=1e38)
    np.testing.assert_array_equal(with_bad.mean[0], bad)
    np.testing.assert_array_equal(with_bad.mean[1:], without.mean[1:])


def test_weights_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="give weights"):
        oyama2017.flat_weights(None, [(3,)])
    with pytest.raises(ValueError, match=r"\[\(3,\)\], not \[\(2,\)\]"):
        oyama2017.flat_weights([np.ones(2, "f")], [(3,)])
    with pytest.raises(ValueError, match=r"\[\(3,\)\], not \[\]"):
        oyama2017.flat_weights([], [(3,)])
