import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import schedules
from divisible.schedules.actions import (
    RECOMPUTE,
    Action,
    ScheduleError,
    Transfer,
)
from divisible.schedules.costs import Costs
from divisible.schedules.lowering import lower
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import LINKS, simulate
from tests.support.examples import examples
from tests.support.schedules import named_schedules

# Sums of these are exact, so that results can be compared for equality.
seconds = st.integers(0, 16).map(lambda n: n / 8)


@st.composite
def cases(draw):
    schedule = draw(named_schedules(max_microbatches=6, max_chunks=3))
    n = schedule.n_stages

    def values(size):
        return draw(st.one_of(seconds, st.lists(seconds, min_size=size, max_size=size)))

    costs = Costs(values(n), values(n), values(n), values(n - 1), values(n - 1))
    return schedule, costs


def duration(costs, action):
    def of(values):
        return values if np.ndim(values) == 0 else values[action.stage]

    first, second = of(costs.backward_input), of(costs.backward_weight)
    return {
        "F": of(costs.forward),
        "B": first + second,
        "I": first,
        "W": second,
    }[action.kind]


def message_seconds(costs, action):
    edge = action.stage if action.kind == "F" else action.stage - 1
    return sum(
        values if np.ndim(values) == 0 else values[edge]
        for values in (costs.transfer, costs.latency)
    )


def by_hand(schedule, costs):
    """The start of each action, by asking each action what it waits for."""
    before, start = {}, {}
    for row in schedule.actions:
        row = list(row)
        before.update(zip(row[1:], row))

    def end(action):
        return start_of(action) + duration(costs, action)

    def start_of(action):
        if action not in start:
            stage, kind, microbatch = action
            waits = [0.0]
            if action in before:
                waits.append(end(before[action]))
            neighbour = {"F": stage - 1, "B": stage + 1, "I": stage + 1}.get(kind, -1)
            if 0 <= neighbour < schedule.n_stages:
                source = Action(neighbour, kind, microbatch)
                crossing = (
                    schedule.stage_ranks[stage] != schedule.stage_ranks[neighbour]
                )
                waits.append(
                    end(source) + (message_seconds(costs, source) if crossing else 0)
                )
            start[action] = max(waits)
        return start[action]

    return {action: start_of(action) for row in schedule.actions for action in row}


def starts(timeline):
    return {e.what: e.start for e in timeline if isinstance(e.what, Action)}


@examples(80)
@given(cases())
def test_agrees_with_a_calculation_by_hand(case):
    schedule, costs = case
    timeline = simulate(schedule, costs)
    assert starts(timeline) == by_hand(schedule, costs)
    for event in timeline:
        assert event.end - event.start == duration(costs, event.what)
        assert schedule.stage_ranks[event.what.stage] == event.rank


@examples(60)
@given(cases())
def test_without_overlap_it_runs_the_lowered_programs(case):
    schedule, costs = case
    programs = [list(program) for program in lower(schedule)]
    clock = [0.0] * schedule.n_ranks
    expected = []
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            if program and isinstance(program[0], Action):
                action = program.pop(0)
                begin = clock[rank]
                clock[rank] += duration(costs, action)
                expected.append((rank, str(action), begin, clock[rank]))
                moved = True
            elif program and program[0].direction == "send":
                message = program[0]
                peer = message.peer
                answer = Transfer(message.action, rank, "receive")
                if programs[peer] and programs[peer][0] == answer:
                    begin = max(clock[rank], clock[peer])
                    end = begin + message_seconds(costs, message.action)
                    clock[rank] = clock[peer] = end
                    expected.append((rank, str(message), begin, end))
                    expected.append((peer, str(answer), begin, end))
                    program.pop(0)
                    programs[peer].pop(0)
                    moved = True
    assert not any(programs)
    timeline = simulate(schedule, costs, overlap=False)
    found = [(e.rank, str(e.what), e.start, e.end) for e in timeline]
    assert sorted(found) == sorted(expected)
    for rank, program in enumerate(lower(schedule)):
        assert tuple(event.what for event in timeline.rank_events(rank)) == program


@examples(60)
@given(cases())
def test_the_ways_to_share_links_are_ordered(case):
    schedule, costs = case
    parallel = simulate(schedule, costs).makespan
    serial = simulate(schedule, costs, links="serial").makespan
    shared = simulate(schedule, costs, links="shared").makespan
    blocking = simulate(schedule, costs, overlap=False).makespan
    assert parallel <= serial
    assert parallel <= shared
    assert parallel <= blocking
    free = Costs(costs.forward, costs.backward_input, costs.backward_weight)
    times = starts(simulate(schedule, free))
    for links in ("serial", "shared"):
        assert starts(simulate(schedule, free, links=links)) == times


def test_messages_on_one_link_follow_one_another():
    # Rank 0 is fast and sends four results of 3 s each; rank 1 computes for 1 s.
    schedule = schedules.gpipe(2, 4).forward_only()
    costs = Costs(1, 1, 1, transfer=3, latency=0.5)
    of_rank_1 = [e.start for e in simulate(schedule, costs).rank_events(1)]
    assert of_rank_1 == [4.5, 5.5, 6.5, 7.5]
    timeline = simulate(schedule, costs, links="serial")
    assert [e.start for e in timeline.rank_events(1)] == [4.5, 7.5, 10.5, 13.5]
    timeline = simulate(schedule, costs, links="shared")
    assert [e.start for e in timeline.rank_events(1)] == [4.5, 7.5, 10.5, 13.5]


def test_a_shared_network_serves_first_come_first_served():
    schedule = schedules.gpipe(3, 2).forward_only()
    timeline = simulate(schedule, Costs(1, 1, 1, transfer=2), links="shared")
    # 0F0>1 1..3, 0F1>1 3..5 (computed at 2), 1F0>2 5..7 (computed at 4), 1F1>2 7..9
    assert [e.start for e in timeline.rank_events(1)] == [3, 5]
    assert [e.start for e in timeline.rank_events(2)] == [7, 9]
    timeline = simulate(schedule, Costs(1, 1, 1, transfer=2), links="serial")
    assert [e.start for e in timeline.rank_events(2)] == [6, 8]


@pytest.mark.parametrize("m", [1, 2, 5, 12])
def test_blocking_gpipe_on_two_stages_is_equation_3(m):
    t_comp, t_comm, d = 8.0, 0.25, 2
    costs = Costs(t_comp / d / m, 0, 0, transfer=0.0, latency=t_comm)
    timeline = simulate(schedules.gpipe(d, m).forward_only(), costs, overlap=False)
    t_pipe = (m + d - 1) / m * t_comp / d
    assert timeline.makespan == pytest.approx(t_pipe + (m + d - 2) * t_comm)


def test_edges_inside_a_rank_cost_nothing():
    schedule = schedules.interleaved(1, 3, 2)
    timeline = simulate(schedule, Costs(1, 1, 1, transfer=9, latency=9))
    assert timeline.makespan == 18
    v = schedules.zero_bubble_v(2, 1).forward_only()
    assert simulate(v, Costs(1, 1, 1, latency=[1, 50, 2])).makespan == 7


def test_microbatches_of_unequal_size():
    schedule = schedules.gpipe(1, 3)
    costs = Costs([[1, 1, 0.5]], [[2, 2, 1]], 0)
    assert [e.end - e.start for e in simulate(schedule, costs)] == [1, 1, 0.5, 2, 2, 1]


def test_memory_in_bytes():
    schedule = Schedule([["0F0", "0F1", "1F0", "1I0", "0I0", "1F1", "1I1", "0I1"]])
    rows = [[*schedule.actions[0], "0W0", "0W1", "1W0", "1W1"]]
    costs = Costs(1, 1, 1, activation_bytes=[100, 10], pending_bytes=[7, 1])
    timeline = simulate(Schedule(rows), costs)
    # 0F0 100, 0F1 200, 1F0 210, 1I0 201, 0I0 108, 1F1 118, 1I1 109, 0I1 16
    assert timeline.peak_memory.tolist() == [210]
    # Three, each of one of the two stages of the rank.
    assert timeline.peak_in_flight.tolist() == [1.5]


def test_bubble():
    timeline = simulate(schedules.one_f_one_b(4, 8), Costs(1, 1, 1))
    assert timeline.bubble.tolist() == pytest.approx([3 / 11] * 4)
    assert timeline.busy.tolist() == [24] * 4
    assert timeline.bubble_time.tolist() == [9] * 4


@examples(100)
@given(cases(), st.booleans())
def test_critical_path_leads_from_start_to_end(case, overlap):
    schedule, costs = case
    timeline = simulate(schedule, costs, overlap=overlap)
    path = timeline.critical_path
    assert path[0].start == 0
    assert path[-1].end == timeline.makespan
    for before, after in zip(path, path[1:]):
        if not overlap or before.rank == after.rank:
            assert before.end == after.start
        else:
            assert before.end + message_seconds(costs, before.what) == after.start


def test_critical_path_follows_a_slow_stage():
    timeline = simulate(schedules.one_f_one_b(3, 6), Costs([1, 5, 1], [1, 5, 1], 0))
    stages = [event.what.stage for event in timeline.critical_path]
    # Into the slow stage once, stays there, leaves it once.
    assert stages[0] == stages[-1] == 0
    assert stages.count(1) == 12


def test_a_schedule_that_cannot_run_is_refused():
    with pytest.raises(ScheduleError, match="deadlock"):
        simulate(
            Schedule([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1F0", "1B0", "1B1"]]),
            Costs(1, 1, 1),
        )


@pytest.mark.parametrize(
    "costs, message",
    [
        ({"forward": [1, 2, 3]}, "Costs.forward has 3 numbers.* 2 stages"),
        ({"transfer": [1, 2]}, "Costs.transfer has 2 numbers.* 1 edges"),
        ({"activation_bytes": [1]}, "Costs.activation_bytes"),
        ({"backward_input": -1}, "Costs.backward_input must be finite"),
        ({"latency": float("nan")}, "Costs.latency must be finite"),
    ],
)
def test_costs_that_do_not_fit_are_refused(costs, message):
    values = {"forward": 1, "backward_input": 1, "backward_weight": 1, **costs}
    with pytest.raises(ValueError, match=message):
        simulate(schedules.gpipe(2, 2), Costs(**values))


def test_options_are_checked():
    schedule = schedules.gpipe(2, 2)
    with pytest.raises(ValueError, match="one of parallel, serial, shared"):
        simulate(schedule, Costs(1, 1, 1), links="bus")
    with pytest.raises(ValueError, match="needs overlap=True"):
        simulate(schedule, Costs(1, 1, 1), overlap=False, links="shared")


def test_costs_tell_the_number_of_stages():
    assert Costs(1, [1, 2], 1).n_stages == 2
    assert Costs(1, 1, 1, transfer=[1, 2]).n_stages == 3
    assert Costs(1, 1, 1).n_stages is None


def test_many_ranks_stay_cheap():
    schedule = schedules.one_f_one_b(128, 256)
    timeline = simulate(schedule, Costs(1, 1, 1))
    assert timeline.makespan == (128 + 256 - 1) * 3
    assert len(timeline) == 2 * 128 * 256
    assert sum(e.end - e.start for e in timeline.critical_path) == timeline.makespan


def test_each_message_for_a_group_occupies_a_shared_link():
    """The group waits for the last one, which waits for those before it."""
    schedule = Schedule([["0F0", "0F1", "0B0", "0B1"], ["1F0-1", "1B0-1"]])
    costs = Costs(forward=0.0, backward_input=0.0, backward_weight=0.0, transfer=1.0)
    makespans = [simulate(schedule, costs, links=links).makespan for links in LINKS]
    assert dict(zip(LINKS, makespans)) == {"parallel": 2, "serial": 4, "shared": 4}


def test_directions_of_messages_and_coding_have_their_own_costs():
    costs = Costs(
        [1, 1],
        [1, 1],
        [1, 1],
        transfer=1,
        transfer_backward=3,
        coding_forward=[0.5, 0.25],
        coding_backward=[2, 4],
    )
    timeline = simulate(schedules.gpipe(2, 1), costs)
    assert timeline.makespan == 1.5 + 1 + 1.25 + 6 + 3 + 4
    assert timeline.bound == timeline.makespan - 1
    alternated = simulate(schedules.gpipe(2, 1), costs, overlap=False)
    assert alternated.makespan == timeline.makespan
    # A forward that runs again neither sends nor receives.
    assert costs.durations(2, 1)[RECOMPUTE].tolist() == [[1], [1]]
