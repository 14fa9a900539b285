"""Densities, and how local magnitudes are."""

import numpy as np
import pytest

from benchmarks.paper_exchange.look import SHOWN, Look, density, local_part, normalized


def test_a_density_has_its_maximum_at_the_most_frequent_magnitude():
    random = np.random.RandomState(0)
    values = 10 ** random.normal(-3, 0.5, 5000) * random.choice([-1, 0, 1], 5000)
    places, found = density(values.astype("f"))
    assert found.max() == 1
    assert places[found.argmax()] == pytest.approx(-3, abs=0.2)
    assert found[0] < 0.3 and found[-1] < 0.3


def test_values_are_relative_to_a_quantile():
    values = np.arange(-100, 101, dtype="f")
    found = normalized(values)
    assert np.abs(found).max() == 1 and found.size == 199


def test_magnitudes_of_rows_and_columns_are_local():
    random = np.random.RandomState(0)
    noise = random.standard_normal((40, 5, 12))
    rows, columns = (
        10 ** random.normal(0, 2, (40, 1, 1)),
        10 ** random.normal(0, 2, (1, 5, 12)),
    )
    assert local_part(noise) < 0.1
    assert local_part(noise * rows * columns) > 0.8
    assert local_part(np.ones((4, 3))) == 0
    # A filter without a gradient does not count.
    with_zeros = np.concatenate([noise * rows, np.zeros((3, 5, 12))])
    assert local_part(with_zeros) == pytest.approx(local_part(noise * rows))


def test_the_ratio_is_relative_to_the_weights():
    weights, gradient = np.full((2, 3), -0.5, "f"), np.ones((2, 3), "f")
    found = Look(7, {SHOWN: weights}, {SHOWN: gradient})
    np.testing.assert_allclose(found.shown()["ratio"], 2, rtol=1e-4)
    assert list(found.distributions()) == [SHOWN]
    assert not Look(7, {SHOWN: weights}, {SHOWN: 0 * gradient}).distributions()
