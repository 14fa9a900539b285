"""Abilities and decisions, with the examples of section 6."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterogeneous import ability, decide, efficiency
from heterogeneous.estimates import check_thresholds, of_now


def test_three_measurements():
    assert ability([100] * 3, [2.0, 2.1, 1.9]) == pytest.approx(49.9168, abs=5e-5)


@pytest.mark.parametrize(("last", "expected"), [(6, 30.0), (3, 25.0), (None, 30.0)])
def test_a_step_of_load(last, expected):
    assert ability([100] * 6, [2, 2, 2, 4, 4, 4], last=last) == pytest.approx(expected)


def test_the_paper_counts_the_newest_six():
    assert ability([100] * 7, [50.0, *[2.0] * 6]) == pytest.approx(50)


@given(
    st.floats(1e-3, 1e6),
    st.lists(st.floats(1, 1e6), min_size=1, max_size=30),
)
def test_what_is_on_a_line_gives_its_slope(slope, work):
    seconds = [w / slope for w in work]
    assert ability(work, seconds, last=None) == pytest.approx(slope, rel=1e-9)


def test_it_is_the_line_of_least_squares():
    random = np.random.RandomState(0)
    w, t = random.uniform(50, 150, 12), random.uniform(1, 3, 12)
    fitted, *_ = np.linalg.lstsq(t[:, np.newaxis], w, rcond=None)
    assert ability(w, t, last=None) == pytest.approx(float(fitted[0]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([], []), "one at least"),
        (([1, 2], [1]), "work has 2 numbers and seconds 1 number: give a list"),
        (([1], [0]), r"must be positive and finite, not \[0.0\]"),
        (([1], [float("nan")]), "must be positive and finite"),
    ],
)
def test_what_is_no_measurement_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        ability(*arguments)


def test_no_measurement_is_none_to_count():
    with pytest.raises(ValueError, match="last must be 1 or more, not 0"):
        ability([1], [1], last=0)


def test_a_spike_does_not_count():
    assert of_now([2, 2, 2, 2, 2, 20, 2]).tolist() == [True] * 5 + [False, True]


def test_a_spike_at_the_end_does_not_count():
    assert of_now([2] * 19 + [20]).tolist() == [True] * 19 + [False]


@pytest.mark.parametrize("seconds", [[1, 10] * 10, [1, 10], [1], [2] * 17 + [4] * 3])
def test_all_count_where_there_is_no_usual_time(seconds):
    """As on hosts that get time in periods longer than an iteration."""
    assert of_now(seconds).all()


@pytest.mark.parametrize("n_new", range(4, 17))
def test_what_was_before_a_step_does_not_count(n_new):
    counts = of_now([2.0] * (20 - n_new) + [4.0] * n_new)
    assert counts.tolist() == [False] * (20 - n_new) + [True] * n_new


@pytest.mark.parametrize(
    ("times", "check", "has_initial", "expected"),
    [
        ([1, 0.9, 0.85], 1, True, None),
        ([1, 0.79, 0.9], 1, True, "line"),
        ([1, 0.39, 0.9], 1, True, "whole"),
        # Not below.
        ([1, 0.8], 4, True, None),
        ([1, 0.4], 4, True, "line"),
        ([1, 1], 1, False, "whole"),
        ([1, 1], 2, False, None),
        ([1, 0.79], 2, False, "line"),
        ([3], 1, True, None),
    ],
)
def test_decisions(times, check, has_initial, expected):
    assert decide(times, check=check, has_initial=has_initial) == expected


def test_other_thresholds():
    times = [1, 0.85]
    assert decide(times, check=2, has_initial=True, line=0.9) == "line"
    assert decide(times, check=2, has_initial=True, whole=0.9, line=0.9) == "whole"
    check_thresholds(0.4, 0.8)
    for whole, line in [(0.9, 0.8), (-0.1, 0.8), (0.4, 1.1), (0.4, float("nan"))]:
        with pytest.raises(ValueError, match="0 <= whole <= line <= 1"):
            check_thresholds(whole, line)


def test_equation_11():
    assert efficiency(1.0, [4, 4, 4, 4]) == 1
    assert efficiency(2.0, [4, 4, 4, 4]) == 0.5
    # Equal parts for a slow one and a fast one: half of its throughput twice.
    assert efficiency(0.5, [1.0, 0.25]) == pytest.approx(2 / 5)
    for arguments in [(0, [1]), (1, []), (1, [1, 0])]:
        with pytest.raises(ValueError, match="times must be positive"):
            efficiency(*arguments)
