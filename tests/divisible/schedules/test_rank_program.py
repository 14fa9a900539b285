"""What one rank has to do for a schedule, and what all ranks did."""

import numpy as np
import pytest

from divisible.schedules import group_stages, one_f_one_b, zero_bubble_v
from divisible.schedules.actions import Action, Route
from divisible.schedules.events import Event
from divisible.schedules.rank_program import (
    Channel,
    RankProgram,
    RankTimes,
    Record,
    Slot,
    Span,
    measured_timeline,
)
from divisible.schedules.recomputation import recompute


def program(schedule, rank, routes=()):
    return RankProgram.of(schedule, rank, rendezvous=False, routes=routes)


def task(program, text):
    return next(task for task in program.tasks if str(task.operation) == text)


def test_what_an_action_takes_is_what_its_neighbour_left():
    middle = program(one_f_one_b(3, 4), 1)
    assert task(middle, "1F2").takes == {"": Slot(0, True, 2)}
    assert task(middle, "1F2").slot == Slot(1, True, 2)
    assert task(middle, "1B2").takes == {"": Slot(2, False, 2)}
    first, last = program(one_f_one_b(3, 4), 0), program(one_f_one_b(3, 4), 2)
    # The input and the loss lie where another stage would have left them.
    assert task(first, "0F0").takes == {"": Slot(-1, True, 0)}
    assert task(last, "2B0").takes == {"": Slot(3, False, 0)}


def test_skips_are_taken_by_their_names():
    routes = [Route("far", 0, 2)]
    schedule = one_f_one_b(3, 2)
    forward = task(program(schedule, 2, routes), "2F1")
    assert forward.takes == {"": Slot(1, True, 1), "far": Slot(0, True, 1, "far")}
    backward = task(program(schedule, 0, routes), "0B1")
    assert backward.takes == {"": Slot(1, False, 1), "far": Slot(2, False, 1, "far")}
    assert list(task(program(schedule, 1, routes), "1F1").takes) == [""]


def test_receives_of_each_channel_in_order():
    middle = program(one_f_one_b(3, 4), 1, [Route("far", 0, 2)])
    expected = {Channel(0, True): [0, 1, 2, 3], Channel(2, False): [0, 1, 2, 3]}
    assert dict(middle.receives) == expected
    received = [task for task in middle.tasks if "<" in str(task.operation)]
    assert len(received) == 8
    # What waits comes next among the actions.
    assert received[0].next_action == "1F0"


def test_forwards_that_are_run_again():
    first = program(recompute(one_f_one_b(2, 3)), 0)
    for i in range(3):
        assert task(first, f"0F{i}").is_recomputed
        assert not task(first, f"0R{i}").takes
    last = program(recompute(one_f_one_b(2, 3)), 1)
    assert not task(last, "1F0").is_recomputed


@pytest.mark.parametrize(
    ("schedule", "rank", "last"),
    [
        (one_f_one_b(3, 4), 2, "2F3"),
        (group_stages(one_f_one_b(2, 4), [1, 2]), 1, "1F2-3"),
        (zero_bubble_v(2, 3), 0, "3F2"),
    ],
)
def test_tasks_until_the_last_stage_has_computed_all_losses(schedule, rank, last):
    whole = program(schedule, rank)
    assert str(whole.tasks[whole.n_until_losses() - 1].operation) == last
    assert program(schedule, 1 - rank if rank < 2 else 0).n_until_losses() == 0


def test_a_timeline_begins_with_the_first_operation():
    ranks = []
    for rank, shift in ((0, 0.0), (1, 0.5)):
        operations = program(one_f_one_b(2, 2), rank).operations
        times = 100.0 + shift + np.arange(2.0 * len(operations))
        ranks.append(RankTimes(operations, times, []))
    timeline = measured_timeline("measured", ranks)
    assert timeline.start.min() == 0.0
    assert timeline.makespan == pytest.approx(2 * len(ranks[0].operations) - 0.5)
    assert timeline.n_ranks == 2 and timeline.name == "measured"
    waits = {event.what for event in timeline if event.category == "wait"}
    received = [what for what in ranks[0].operations if not isinstance(what, Action)]
    assert {what for what in received if what.direction == "receive"} <= waits


def test_a_timeline_has_what_ranks_do_besides():
    operations = program(one_f_one_b(1, 1), 0).operations
    times = 5 + np.arange(2.0 * len(operations))
    rank = RankTimes(operations, times, [Span("exchange", 6.5, 20.0)])
    (event,) = [e for e in measured_timeline("", [rank]) if e.category == "other"]
    assert event == Event(0, "exchange", 1.5, 15.0, "other")


def test_what_follows_a_run_keeps_its_category():
    one = program(one_f_one_b(1, 1), 0)
    times = [*np.arange(2.0 * len(one.operations))]
    record = Record(one, times).followed_by(Span("update", 6.0, 8.0, "update"))
    record = record.followed_by(Span("move", 8.0, 9.0))
    rank = RankTimes(one.operations, np.array(times), record.after)
    events = measured_timeline("", [rank]).rank_events(0)
    assert [(e.what, e.category) for e in events[-2:]] == [
        ("update", "update"),
        ("move", "other"),
    ]


@pytest.mark.parametrize(
    "exchanges, start",
    [([], 3.0), ([(1, 2)], 3.0), ([(1, 4), (2, 3.5)], 4.0), ([(4, 7)], 3.0)],
)
def test_an_update_begins_behind_the_exchange_that_it_waits_for(exchanges, start):
    others = [Span("exchange", *times) for times in exchanges]
    update = Span("update", 3.0, 6.0, "update")
    assert update.behind(others) == Span("update", start, 6.0, "update")
