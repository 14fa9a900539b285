"""A number of samples holds for one update."""

import warnings

import pytest

from data_parallel.sample_count import SampleCount


def test_a_number_holds_for_one_update():
    count = SampleCount(warns=False)
    count.set(3)
    assert (count.value, count.take(), count.value, count.take()) == (3, 3, None, None)


@pytest.mark.parametrize("given, is_expected", [((3,), True), ((3, None), False)])
def test_a_number_that_is_forgotten_warns(given, is_expected):
    count = SampleCount(warns=True)
    for value in given:
        count.set(value)
        count.take()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count.take()
        count.take()
    assert len(caught) == is_expected
