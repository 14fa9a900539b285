"""Steps that are taken, judged, and taken back."""

import pytest

from model_compression.progress import Progress
from model_compression.steps import Steps

COURSES = [
    Progress((2, "iteration"), (6, "iteration"), 3, "cubic"),
    Progress((4, "iteration"), None, 1, "cubic"),
]


def test_without_a_metric_all_steps_that_are_due_are_taken_at_once():
    steps = Steps(COURSES)
    assert steps.due(1, 0.0) == {}
    steps.take(steps.due(4, 0.0))
    assert steps.taken == [2, 1]
    assert [steps.are_over(number) for number in (0, 1)] == [False, True]
    steps.take(steps.due(9, 0.0))
    assert steps.taken == [3, 1] and steps.are_over(0)
    assert steps.judge(0.0) == []


def test_with_a_metric_they_are_taken_one_by_one():
    steps = Steps(COURSES, "quality", 0.1)
    assert steps.due(6, 0.0) == {} and not steps.has_base
    assert steps.judge(1.0) == [] and steps.has_base
    steps.take(steps.due(6, 0.0))
    assert steps.taken == [1, 1]
    assert steps.due(7, 0.0) == {} and not steps.are_over(1)
    assert steps.judge(0.95) == []
    assert steps.are_over(1) and steps.due(7, 0.0) == {0: 2}
    steps.take({0: 2})
    assert steps.judge(0.8) == [0]
    assert steps.taken == [1, 1] and steps.are_over(0)
    assert steps.due(9, 0.0) == {}


@pytest.mark.parametrize("value, is_back", [(2.05, False), (2.2, True), (1.0, False)])
def test_a_lower_metric_may_be_the_better_one(value, is_back):
    steps = Steps(COURSES[1:], "loss", 0.1, "lower")
    steps.judge(2.0)
    steps.take({0: 1})
    assert steps.judge(value) == [0] * is_back


def test_a_metric_that_is_no_number_takes_steps_back():
    steps = Steps(COURSES[1:], "loss", 0.1)
    steps.judge(2.0)
    steps.take({0: 1})
    assert steps.judge(float("nan")) == [0]
