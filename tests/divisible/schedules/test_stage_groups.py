"""Stages that take several microbatches as one: always valid, and never deadlocked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.schedules import Costs, ScheduleError, gpipe, one_f_one_b
from divisible.schedules.groups import group_weights
from divisible.schedules.lowering import lower
from divisible.schedules.recomputation import recompute
from divisible.schedules.simulator import simulate
from divisible.schedules.stage_groups import group_stages, stage_group_sizes
from tests.support.program_validation import check_programs
from tests.support.schedules import ONE_VERSION, named_schedules


@given(named_schedules(4, 9, max_chunks=3, names=ONE_VERSION), st.data())
def test_any_sizes_make_a_valid_schedule(schedule, data):
    n = schedule.n_stages
    sizes = data.draw(st.lists(st.integers(1, 10), min_size=n, max_size=n))
    grouped = group_stages(schedule, sizes)
    grouped.validate()
    check_programs(lower(grouped))
    most = schedule.n_microbatches
    assert stage_group_sizes(grouped) == tuple(min(size, most) for size in sizes)
    for changed in (recompute(grouped), group_weights(grouped, 3)):
        changed.validate()
    # Nothing is lost: the same kinds of action for each stage and microbatch.
    for before, after in zip(schedule.actions, grouped.actions):
        assert sorted(
            (action.stage, action.kind, i)
            for action in after
            for i in action.microbatches
        ) == sorted(before)


@given(named_schedules(4, 9, max_chunks=3))
def test_groups_of_one_are_the_schedule(schedule):
    assert group_stages(schedule, 1) is schedule


@given(st.integers(1, 5), st.integers(1, 12), st.integers(1, 5))
def test_groups_of_all_stages_are_larger_microbatches(n_stages, n_groups, size):
    """Equal groups everywhere take as long as that many larger microbatches."""
    m = n_groups * size
    grouped = group_stages(one_f_one_b(n_stages, m), size)
    costs = Costs(1.0, 1.0, 1.0)
    whole = Costs(float(size), float(size), float(size))
    expected = simulate(one_f_one_b(n_stages, n_groups), whole).makespan
    assert simulate(grouped, costs).makespan == pytest.approx(expected)


def test_what_cannot_be_grouped():
    with pytest.raises(ScheduleError, match="has groups or recomputation already"):
        group_stages(recompute(gpipe(2, 4)), 2)
    with pytest.raises(ScheduleError, match="has groups or recomputation already"):
        group_stages(group_stages(gpipe(2, 4), 2), 4)
    with pytest.raises(ScheduleError, match="there are 2 stages"):
        group_stages(gpipe(2, 4), [1, 2, 3])
