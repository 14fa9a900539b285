import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import simulate
from divisible.schedules import (
    Costs,
    create,
    list_schedule,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_v,
)
from divisible.schedules.actions import ScheduleError
from divisible.schedules.catalogue import placed
from tests.support.examples import examples
from tests.support.schedules import UNIT

seconds = st.integers(0, 8).map(lambda eighths: eighths / 8 + 0.125)


@examples(40)
@given(st.data())
def test_list_schedule_respects_its_limit(data):
    ranks = data.draw(st.integers(1, 4))
    shape = data.draw(st.sampled_from(["straight", "v", "loop"]))
    stage_ranks = {
        "straight": [*range(ranks)],
        "v": [*range(ranks), *reversed(range(ranks))],
        "loop": [*range(ranks)] * 3,
    }[shape]
    n = len(stage_ranks)
    m = data.draw(st.integers(1, 9))
    each = st.lists(seconds, min_size=n, max_size=n)
    costs = Costs(
        data.draw(each),
        data.draw(each),
        data.draw(each),
        transfer=data.draw(seconds),
        latency=data.draw(seconds),
    )
    per_rank = n // ranks
    # In units of all layers of a rank: six stages more than one microbatch needs.
    limit = data.draw(st.integers(per_rank, per_rank + 6)) / per_rank
    split = data.draw(st.booleans())
    schedule = list_schedule(costs, m, limit, stage_ranks, split_backward=split)
    report = schedule.validate()
    assert max(report.held) <= limit
    assert schedule.n_microbatches == m
    assert ("W" in str(schedule)) == split


@st.composite
def problems(draw):
    """Draws unequal costs of stages on ranks, a number of microbatches and a limit."""
    ranks = [*range(draw(st.integers(2, 4)))]
    stage_ranks = draw(st.sampled_from([ranks, ranks + ranks[::-1], ranks * 2]))
    n, per_rank = len(stage_ranks), len(stage_ranks) // len(ranks)
    each = st.lists(seconds, min_size=n, max_size=n)
    costs = Costs(draw(each), draw(each), draw(each), latency=draw(seconds) - 0.125)
    # In units of all layers of a rank, as much as ZB-H2 holds or less.
    limit = draw(st.integers(per_rank, (2 * len(ranks) - 1) * per_rank)) / per_rank
    return costs, draw(st.integers(1, 9)), limit, stage_ranks


@pytest.mark.slow
@examples(100)
@given(problems(), st.booleans())
def test_list_schedule_is_no_slower_than_any_fixed_pattern(problem, split):
    costs, m, limit, stage_ranks = problem
    made = list_schedule(costs, m, limit, stage_ranks, split_backward=split)
    assert max(made.validate().held) <= limit
    makespan = simulate(made, costs).makespan
    for pattern in placed(stage_ranks, m):
        if max(pattern.validate().held) <= limit and (split or "I" not in str(pattern)):
            assert makespan <= simulate(pattern, costs).makespan * (1 + 1e-9)


@pytest.mark.parametrize("name, d", [("v_half", 3), ("v_min", 4)])
def test_list_schedule_finds_the_pattern_that_holds_little(name, d):
    """With little memory the greedy schedules wait for each microbatch."""
    pattern = create(name, 2 * d, 32)
    limit = max(pattern.validate().held)
    made = list_schedule(UNIT, 32, limit, pattern.stage_ranks)
    assert (made.name, made) == ("list", pattern)


def test_list_schedule_without_split_backwards_takes_whole_patterns_only():
    costs = Costs([1, 1, 1, 3], [2, 2, 2, 6], [0.5, 0.5, 0.5, 1.5])
    made = list_schedule(costs, 8, 4, split_backward=False)
    assert {action.kind for row in made.actions for action in row} == {"F", "B"}


@pytest.mark.parametrize("d", [2, 4, 8])
@pytest.mark.parametrize("m", [2, 4, 8, 16, 32])
def test_list_schedule_is_no_worse_than_the_handmade_ones(d, m):
    def makespan(schedule):
        return simulate(schedule, UNIT).makespan

    tip = [*range(d), *reversed(range(d))]
    assert makespan(list_schedule(UNIT, m, d, range(d))) <= makespan(
        zero_bubble_h1(d, m)
    )
    assert makespan(list_schedule(UNIT, m, 2 * d, tip)) <= makespan(zero_bubble_v(d, m))
    whole = list_schedule(UNIT, m, d, range(d), split_backward=False)
    assert makespan(whole) <= makespan(one_f_one_b(d, m))


def test_list_schedule_with_limits_per_rank():
    schedule = list_schedule(UNIT, 6, memory_limit=[3, 1, 2], n_stages=3)
    assert all(a <= b for a, b in zip(schedule.validate().held, [3, 1, 2]))


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "number of stages is unknown"),
        ({"n_stages": 0}, "at least one stage"),
        ({"stage_ranks": [0, 1, 0], "memory_limit": 0.5}, "rank 0: .* needs 1"),
        ({"n_stages": 2, "memory_limit": float("nan")}, "of nan is too little"),
        ({"n_stages": 2, "memory_limit": [1]}, "1 number, but there are 2 ranks"),
    ],
)
def test_list_schedule_refuses(options, message):
    with pytest.raises(ScheduleError, match=message):
        list_schedule(UNIT, 4, **options)
