"""Actions that are moved in the order of their rank."""

import pytest

from divisible.explore.editing import moved
from divisible.schedules import Schedule, ScheduleError, gpipe, one_f_one_b


def test_a_moved_action_is_where_it_was_dropped():
    schedule = one_f_one_b(2, 4)
    assert [str(each) for each in schedule.actions[0][:4]] == [
        "0F0",
        "0F1",
        "0B0",
        "0F2",
    ]
    edited = moved(schedule, rank=0, source=3, target=2)
    assert [str(each) for each in edited.actions[0][:4]] == ["0F0", "0F1", "0F2", "0B0"]
    assert edited.actions[1] == schedule.actions[1]
    assert edited.name == "1f1b edited"
    assert Schedule.parse(str(edited)) == edited


def test_moving_back_gives_the_same_schedule():
    schedule = gpipe(2, 3)
    there = moved(schedule, 1, 3, 1)
    assert moved(there, 1, 1, 3) == schedule
    assert moved(there, 1, 1, 3).name == "gpipe edited"


def test_an_order_that_cannot_run_is_refused_with_its_grid():
    with pytest.raises(ScheduleError) as caught:
        moved(gpipe(2, 2), rank=0, source=3, target=0)
    assert "0B1 runs before 0F1, whose result it needs" in str(caught.value)
    assert "!0B1!" in str(caught.value)


def test_a_deadlock_is_refused():
    schedule = one_f_one_b(2, 3)
    at = [str(a) for a in schedule.actions[0]].index("0B1")
    with pytest.raises(ScheduleError, match="deadlock|runs before"):
        moved(schedule, 0, at, 0)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ((2, 0, 1), "no rank 2"),
        ((0, 4, 1), "no position 4"),
        ((0, 1, -1), "no position"),
    ],
)
def test_places_that_are_not_there_are_refused(place, words):
    with pytest.raises(ValueError, match=words):
        moved(gpipe(2, 2), *place)
