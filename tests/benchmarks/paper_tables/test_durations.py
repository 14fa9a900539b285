"""How often steps are timed, and how long that takes by estimation."""

import pytest

from benchmarks.paper_tables.durations import (
    is_enough,
    seconds_left,
    seconds_of,
    step_seconds,
)
from benchmarks.paper_tables.points import FIG4, Point


@pytest.mark.parametrize(
    "seconds, quick, enough",
    [
        ([], True, False),
        ([100.0], True, True),
        ([1.0] * 14, False, False),
        ([1.0] * 15, False, True),
        ([0.1] * 15, False, True),
        ([20.0] * 2, False, False),
        ([20.0] * 3, False, True),
        ([61.0], False, True),
    ],
)
def test_short_steps_are_timed_more_often(seconds, quick, enough):
    assert is_enough(seconds, quick) == enough


def test_the_undivided_step_takes_as_long_as_the_share_of_a_core_is_small():
    point = Point("vgg16", 32, 84, 8, 20)
    whole, half = (step_seconds(point.serial, cpu) for cpu in (1.6, 0.8))
    assert half == pytest.approx(2 * whole)
    # Eight hosts share the work.
    assert whole / 8 < step_seconds(point, 1.6) < whole


def test_blocking_messages_take_longer_and_kernels_do_not():
    point, options = Point("resnet50", 32, 90, 4, 20), {"kernels": "off"}
    printed = Point("resnet50", 32, 90, 4, 20, schedule=FIG4)
    plain = Point("resnet50", 32, 90, 4, 20, **options)
    assert step_seconds(printed, 1.6) > step_seconds(point, 1.6)
    assert step_seconds(plain, 1.6) > step_seconds(point, 1.6)


def test_only_the_first_samples_of_points_and_groups_take_longer():
    points = [Point("vgg16", 32, 84, n, 20) for n in (2, 2, 4)]
    one = [step_seconds(point, 1.6) for point in points]
    first, again, more = seconds_of(zip(points, (0, 1, 0)), 1.6, quick=True)
    assert again == pytest.approx(one[0])
    assert first > one[0] and more > one[2]
    slow = seconds_of(zip(points, (0, 1, 0)), 1.6, quick=False)
    # A step of less than 15 seconds is timed several times, and once to get memory.
    assert slow[0] > slow[1] > 2 * one[0]


def test_the_time_that_is_left_follows_from_the_time_that_has_passed():
    assert seconds_left(done=10.0, left=30.0, passed=20.0) == 60.0
    assert seconds_left(done=0.0, left=30.0, passed=0.0) == 30.0
