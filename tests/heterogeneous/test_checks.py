"""Measurements, and the partitions that follow from them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterogeneous import rectangular_partition
from heterogeneous.checks import Measurements, Summary, outcome

OPTIONS = {"has_initial": True, "whole": 0.4, "line": 0.8}
B = (0.63, 0.63, 0.63, 1.0)


def summaries(partition, abilities):
    """Returns what processors of these abilities say, without noise."""
    return [
        Summary(r.work / ability, ability, 2 * ability)
        for r, ability in zip(partition.rectangles, abilities)
    ]


def test_what_was_before_a_check_does_not_count():
    measurements = Measurements()
    for _ in range(3):
        measurements.add(100, 2.0, 1.0)
    assert measurements.summary() == Summary(2.0, 50.0, 100.0)
    measurements.add(50, 4.0, 0.5)
    assert measurements.summary() == Summary(4.0, 12.5, 100.0)


def test_the_newest_count_wherever_they_are():
    measurements = Measurements(last=3)
    for _ in range(5):
        measurements.add(100, 2.0, 1.0)
    measurements.summary()
    measurements.add(130, 2.0, 1.3)
    seconds, by_t1, by_t2 = measurements.summary()
    assert seconds == 2.0 and by_t1 == pytest.approx(55.0)
    assert by_t2 == pytest.approx(100.0)


def printed_summary(rows):
    """Section 6.2 in NumPy: the newest six points, a line by the normal equation."""
    newest = np.array(rows, np.float64)[-6:]
    work = newest[:, :1]
    slopes = [
        np.linalg.solve(t.T @ t, t.T @ work).item()
        for t in (newest[:, 1:2], newest[:, 2:3])
    ]
    return newest[:, 1].mean(), *slopes


SECONDS = st.floats(0.01, 100)


@given(
    st.lists(st.tuples(st.integers(1, 10**6), SECONDS, SECONDS), min_size=1),
    st.integers(1, 5),
)
def test_without_the_filter_abilities_are_those_of_the_papers_least_squares(rows, n):
    measurements = Measurements(filter=False)
    for i, row in enumerate(rows, start=1):
        measurements.add(*row)
        if i % n == 0 or i == len(rows):
            # A check forgets nothing: the newest six may be from before it.
            found = measurements.summary()
            assert found == pytest.approx(printed_summary(rows[:i]), rel=1e-9)


@pytest.mark.parametrize(("filter", "expected"), [(False, 7.142857), (True, 50.0)])
def test_one_long_iteration_among_six(filter, expected):
    measurements = Measurements(filter=filter)
    for seconds in (2, 2, 20, 2, 2, 2):
        measurements.add(100, seconds, seconds / 2)
    _, by_t1, by_t2 = measurements.summary()
    assert by_t1 == pytest.approx(expected)
    assert by_t2 == pytest.approx(2 * expected)


def test_without_the_filter_another_number_can_count():
    measurements = Measurements(last=2, filter=False)
    for seconds in (9, 9, 1, 3):
        measurements.add(100, seconds, seconds)
    assert measurements.summary().seconds == 2.0
    assert measurements.summary().ability == pytest.approx(400 / 10)


def test_the_worked_example():
    """Condition B, given 0.63 where 0.5 is true; then one slows down to 0.3."""
    p = rectangular_partition(B, 203, 80, 26, 1024)
    true = [0.5, 0.5, 0.5, 1.0]
    first = outcome(p, summaries(p, true), check=1, **OPTIONS)
    assert first.action == "line" and first.ratio == pytest.approx(0.79, abs=0.01)
    assert first.slowest in (0, 1, 2)
    assert first.partition.columns == p.columns
    assert first.abilities == pytest.approx([0.2, 0.2, 0.2, 0.4])
    p = first.partition
    second = outcome(p, summaries(p, true), check=2, **OPTIONS)
    assert second.action is None and second.ratio > 0.97
    assert second.partition is p
    slowed = [0.5, 0.5, 0.5, 0.3]
    third = outcome(p, summaries(p, slowed), check=4, **OPTIONS)
    assert third.action == "whole" and third.ratio == pytest.approx(0.3, abs=0.01)
    assert third.slowest == 3
    p = third.partition
    assert (
        p.rectangles == rectangular_partition(slowed, *(203, 80, 26, 1024)).rectangles
    )
    last = outcome(p, summaries(p, slowed), check=5, **OPTIONS)
    assert last.action is None and last.ratio > 0.95


def test_all_is_mapped_anew_by_the_backward_alone():
    p = rectangular_partition([1, 1, 1], 203, 80, 26, 1024)
    said = [Summary(1.0, 1.0, ability) for ability in (1, 2, 4)]
    found = outcome(p, said, check=1, **{**OPTIONS, "has_initial": False})
    assert found.action == "whole"
    assert found.abilities == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    # From then on by the times.
    assert outcome(p, said, check=2, **{**OPTIONS, "has_initial": False}).action is None


def test_the_same_rectangles_are_no_remapping():
    p = rectangular_partition([1, 1, 1], 203, 80, 26, 1024)
    said = [Summary(1.0, 1.0, 1.0)] * 3
    found = outcome(p, said, check=1, **{**OPTIONS, "has_initial": False})
    assert found.action is None and found.partition is p
