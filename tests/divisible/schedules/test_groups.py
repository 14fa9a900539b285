"""Actions on several microbatches: proved, counted, lowered, simulated and drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.schedules import Costs, Schedule, ScheduleError, gpipe
from divisible.schedules.actions import Action, Transfer
from divisible.schedules.comparison import Comparison
from divisible.schedules.critical_path import critical_path
from divisible.schedules.groups import group_weights, weight_group_sizes
from divisible.schedules.lowering import lower
from divisible.schedules.recomputation import recompute
from divisible.schedules.simulator import simulate
from divisible.schedules.timeline import Timeline
from tests.support.program_validation import check_programs
from tests.support.schedules import (
    ONE_VERSION,
    grouped_schedules,
    held_moments,
    named_schedules,
)

COSTS = Costs(forward=1.0, backward_input=1.0, backward_weight=1.0)


def parse(*rows, microbatches=4):
    lines = [f"rank {rank}  {row}" for rank, row in enumerate(rows)]
    ranks = " ".join(map(str, range(len(rows))))
    head = f"mine: {microbatches} microbatches, {len(rows)} stages on ranks {ranks}"
    return Schedule.parse("\n".join([head, *lines]))


@pytest.mark.parametrize("text", ["2F4-4", "2F4-3", "2F-3", "2F1-", "2F1-2-3"])
def test_what_is_no_group(text):
    with pytest.raises(ScheduleError, match="is not an action"):
        Action.parse(text)


def test_a_group_of_one_is_an_action():
    assert Schedule([[Action(0, "F", range(3, 4))]], n_microbatches=4).actions[0] == [
        Action(0, "F", 3)
    ]


@pytest.mark.parametrize("microbatches", [range(0, 4, 2), range(2, 0, -1), range(0)])
def test_groups_are_consecutive(microbatches):
    with pytest.raises(ScheduleError, match="rank 0, position 0"):
        Schedule([[Action(0, "F", microbatches)]], n_microbatches=4)


@given(grouped_schedules())
def test_what_is_printed_is_read(schedule):
    assert Schedule.parse(str(schedule)) == schedule


@given(grouped_schedules(), st.booleans())
def test_groups_are_valid_and_counted(schedule, recomputes):
    if recomputes:
        schedule = recompute(schedule)
    report = schedule.validate()
    for stage, moments in enumerate(held_moments(schedule)):
        assert report.stage_in_flight[stage] == max(graphs for _, graphs, _ in moments)
        found = np.stack(schedule.moments)[:3, :, stage].T
        # Each moment that the walk finds is at most one of those of the schedule.
        assert all((found >= moment).all(axis=1).any() for moment in moments)


@given(grouped_schedules(), st.booleans())
def test_each_microbatch_has_its_messages(schedule, rendezvous):
    programs = lower(schedule, rendezvous)
    if rendezvous:
        check_programs(programs)
    sent = [
        operation.action
        for program in programs
        for operation in program
        if isinstance(operation, Transfer) and operation.direction == "send"
    ]
    assert len(sent) == len(set(sent))
    m, ranks = schedule.n_microbatches, schedule.stage_ranks
    n_edges = sum(a != b for a, b in zip(ranks, ranks[1:]))
    assert len(sent) == 2 * m * n_edges
    assert all(isinstance(action.microbatch, int) for action in sent)


@given(named_schedules(max_chunks=2, names=ONE_VERSION), st.integers(1, 9))
def test_groups_of_weights_leave_the_rest(schedule, size):
    grouped = group_weights(schedule, size)
    grouped.validate()
    sizes = weight_group_sizes(grouped)
    assert max(sizes) == min(size, schedule.n_microbatches) or size == 1
    for before, after in zip(schedule.actions, grouped.actions):
        assert [(a[0], a[1] == "F", a[2]) for a in before if a.kind != "W"] == [
            (a[0], a[1] == "F", a[2]) for a in after if a.kind != "W"
        ]
        assert all(
            a.microbatches[0] % size == 0 and len(a.microbatches) <= size
            for a in after
            if a.kind == "W"
        )
    one = group_weights(grouped, 1)
    assert max(weight_group_sizes(one)) == 1
    one.validate()


@given(grouped_schedules(), st.floats(0, 1), st.sampled_from([0.0, 0.5]))
def test_a_group_saves_its_share(schedule, saved, transfer):
    costs = Costs(1.0, 1.0, 1.0, transfer, 0.25, weight_saved=saved)
    kinds = np.array([1.0, 2.0, 1.0, 1.0, 1.0])[schedule.kind] * schedule.count
    with_weights = (schedule.kind == 1) | (schedule.kind == 3)
    kinds -= with_weights * (schedule.count - 1) * saved
    expected = np.bincount(schedule.action_ranks, kinds, minlength=schedule.n_ranks)
    for links in ("parallel", "serial"):
        timeline = simulate(schedule, costs, links=links)
        np.testing.assert_allclose(timeline.busy, expected)
    blocking = simulate(schedule, costs, overlap=False)
    np.testing.assert_allclose(blocking.busy, expected)


@given(grouped_schedules())
def test_links_in_a_row_are_never_faster(schedule):
    costs = Costs(1.0, 1.0, 1.0, transfer=0.5)
    alone = simulate(schedule, costs).makespan
    assert simulate(schedule, costs, links="serial").makespan >= alone - 1e-9


def test_a_group_begins_when_its_last_message_has_come():
    schedule = parse("0F0-3 0B0-3", "1F0-1 1F2-3 1B0-1 1B2-3")
    costs = Costs(1.0, 1.0, 0.0, transfer=0.5)
    serial = simulate(schedule, costs, links="serial")
    starts = {str(event.what): event.start for event in serial}
    # F of four ends at 4; messages come at 4.5, 5, 5.5 and 6.
    assert (starts["1F0-1"], starts["1F2-3"]) == (5.0, 7.0)
    # 1B0-1 ends at 11 and 1B2-3 at 13; the last of its two messages comes at 14.
    assert starts["0B0-3"] == 14.0
    chain = [str(serial[k].what) for k in critical_path(serial)]
    assert chain == ["0F0-3", "1F0-1", "1F2-3", "1B0-1", "1B2-3", "0B0-3"]


def test_groups_are_saved_read_and_compared(tmp_path):
    grouped = simulate(group_weights(gpipe(2, 4), 4), COSTS)
    grouped.save(tmp_path / "grouped.json")
    again = Timeline.load(tmp_path / "grouped.json")
    assert [event.what for event in again] == [event.what for event in grouped]
    plain = simulate(gpipe(2, 4), COSTS)
    assert str(Comparison(grouped, plain))


def test_groups_are_drawn(tmp_path):
    timeline = simulate(group_weights(gpipe(2, 4), 4), COSTS)
    timeline.plot(tmp_path / "groups.svg")
    text = (tmp_path / "groups.svg").read_text()
    assert "0-3" in text


@pytest.mark.parametrize(
    "row, message",
    [
        ("0F0-1 0F2 0F3 0B0 0B1 0B2 0B3", "0F0-1 and 0B0 take other groups"),
        ("0F0 0F1 0F2 0F3 0B0-1 0B2 0B3", "0F0 and 0B0-1 take other groups"),
        ("0F0-1 0F2 0F3 0R0 0B0-1 0B2 0B3", "0F0-1 and 0R0 take other groups"),
        ("0F0-1 0F2-3 0I0-1 0I2-3 0W0-2 0W3", "0W0-2 takes a part of the group 0I2-3"),
        ("0F0-1 0F2-3 0I0-1 0W0 0W1 0I2-3 0W2-3", "0W0 takes a part of the group"),
        ("0F0-3 0I0-3 0W0-2", "0W3 is missing"),
        ("0F0 0F1 0F2 0F3 0I0 0I1 0W0-3 0I2 0I3", "0W0-3 runs before 0I3"),
        ("0F0 0F1 0F2 0F3 0F1-2 0B0", "0F1 is there 2 times"),
        ("0F0-3 0B0-3 0W0-1", "both whole (B) and in halves"),
        ("0F0-4", "microbatch 4 does not exist"),
    ],
)
def test_faults_of_groups(row, message):
    with pytest.raises(ScheduleError) as caught:
        parse(row).validate()
    assert message in str(caught.value)


def test_a_group_that_waits_for_ever():
    with pytest.raises(ScheduleError, match="deadlock") as caught:
        parse("0F0 0F1 0B0 0F2 0F3 0B1 0B2 0B3", "1F0-3 1B0-3").validate()
    assert "1F0-3 for 0F3" in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, 1.5, [1, 2, 3]])
def test_sizes_that_do_not_exist(size):
    with pytest.raises(ScheduleError):
        group_weights(gpipe(2, 4), size)
