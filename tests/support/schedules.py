"""Schedules of every name for property tests."""

from hypothesis import strategies as st

from divisible import simulate
from divisible.schedules import Costs, Schedule
from divisible.schedules.actions import Action
from divisible.schedules.catalogue import CATALOGUE, NAMES, Placement, create
from divisible.schedules.groups import group_weights

#: F, I and W take a second each.
UNIT = Costs(1, 1, 1)
#: Schedules that may have groups.
ONE_VERSION = [name for name in NAMES if CATALOGUE[name].weight_versions == 1]


def checked(schedule):
    """Validates, and checks what holds for every schedule."""
    report = schedule.validate()
    assert (
        Schedule.from_arrays(
            schedule.stage,
            schedule.kind,
            schedule.microbatch,
            schedule.offsets,
            schedule.stage_ranks,
            schedule.n_microbatches,
            weight_versions=schedule.weight_versions,
        )
        == schedule
    )
    timeline = simulate(schedule, UNIT)
    assert tuple(timeline.peak_in_flight) == report.in_flight
    assert tuple(timeline.peak_held) == report.held
    return report, timeline.makespan


def stages_per_rank(name, chunks):
    """Returns ``chunks`` where a rank may have any number of stages."""
    entry = CATALOGUE[name]
    return chunks if entry.placement is Placement.LOOP else entry.stages_per_rank


@st.composite
def named_schedules(draw, max_ranks=5, max_microbatches=8, max_chunks=4, names=NAMES):
    """Draws a schedule of some name."""
    name = draw(st.sampled_from(names))
    n_ranks = draw(st.integers(1, max_ranks))
    chunks = stages_per_rank(name, draw(st.integers(1, max_chunks)))
    n_microbatches = draw(st.integers(1, max_microbatches))
    return create(name, n_ranks * chunks, n_microbatches, n_ranks)


@st.composite
def grouped_schedules(draw, max_ranks=4, max_microbatches=7):
    """Draws a schedule with groups of weight gradients, or of all kinds of actions."""
    if draw(st.booleans()):
        schedule = draw(named_schedules(max_ranks, max_microbatches, 3, ONE_VERSION))
        sizes = draw(st.lists(st.integers(1, 8), min_size=schedule.n_stages))
        return group_weights(schedule, sizes[: schedule.n_stages])
    m = draw(st.integers(1, max_microbatches))
    rows = []
    for stage in range(draw(st.integers(1, max_ranks))):
        groups = [*_groups(draw, range(m))]
        forward = [Action(stage, "F", group) for group in groups]
        if draw(st.booleans()):
            backward = [Action(stage, "B", group) for group in groups]
        else:
            backward = [Action(stage, "I", group) for group in groups]
            # Weight gradients of whole groups, all after the last I.
            for some in _groups(draw, groups):
                joined = range(some[0].start, some[-1].stop)
                backward.append(Action(stage, "W", joined))
        rows.append(forward + backward)
    return Schedule(rows)


def _groups(draw, members):
    """Cuts a sequence into consecutive parts."""
    cuts = draw(st.sets(st.integers(1, max(1, len(members) - 1))))
    ends = sorted(cuts | {len(members)})
    return [members[a:b] for a, b in zip([0, *ends], ends) if a < b]


def held_moments(schedule):
    """Walks the actions: for each stage all (in flight, graphs, pending) there are."""
    again = {
        (action.stage, microbatch)
        for row in schedule.actions
        for action in row
        for microbatch in action.microbatches
        if action.kind == "R"
    }
    moments = [{(0, 0, 0)} for _ in range(schedule.n_stages)]
    held = [(set(), set(), set()) for _ in range(schedule.n_stages)]
    for row in schedule.actions:
        for action in row:
            stage, kind, microbatches = action.stage, action.kind, action.microbatches
            in_flight, graphs, pending = held[stage]
            if kind == "F":
                in_flight.update(microbatches)
            if kind == "R" or (kind == "F" and (stage, microbatches[0]) not in again):
                graphs.update(microbatches)
            if kind in "BI":
                assert in_flight.issuperset(microbatches)
                in_flight.difference_update(microbatches)
                graphs.difference_update(microbatches)
            if kind == "I":
                pending.update(microbatches)
            if kind == "W":
                assert pending.issuperset(microbatches)
                pending.difference_update(microbatches)
            moments[stage].add((len(in_flight), len(graphs), len(pending)))
    return moments
