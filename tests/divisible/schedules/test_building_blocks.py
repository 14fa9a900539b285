import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import simulate
from divisible.schedules import Costs, building_blocks, one_f_one_b, v_half, v_min
from divisible.schedules.building_blocks import _block
from tests.support.examples import examples
from tests.support.schedules import UNIT, checked

# With the pace and the turns of V-Min and V-Half.
BLOCKS = [(1, (1, 2, 3)), (2, (1, 2, 4))]

ranks = st.integers(1, 16)
microbatches = st.integers(1, 64)
quick = examples(40)


def seconds_of_1f1b(d, m):
    """Returns the makespan of 1F1B, whose stages have the layers of two."""
    return simulate(one_f_one_b(d, m), Costs(2, 2, 2)).makespan


@quick
@given(ranks, microbatches)
def test_v_half(d, m):
    report, makespan = checked(v_half(d, m))
    assert max(report.held) <= min(m, (d + 2) // 2)
    assert max(report.pending) <= 1.5
    assert makespan <= 6 * m + max(4 * (d - 1) - m, 13 * (d - 1) / 4)
    assert makespan <= seconds_of_1f1b(d, m)


@quick
@given(ranks, microbatches)
def test_v_min(d, m):
    report, makespan = checked(v_min(d, m))
    assert max(report.held) <= min(m, (d + 4) // 3)
    assert max(report.pending) <= 1
    assert makespan == 6 * m + max(0, 4 * d - 5)
    assert makespan <= seconds_of_1f1b(d, m)


def test_the_block_of_the_docstring():
    rows = re.findall(r"^    rank \d +(.*)$", building_blocks.__doc__, re.MULTILINE)
    for rank, row in enumerate(rows):
        near, far = rank, 2 * len(rows) - 1 - rank
        block = _block(len(rows), *BLOCKS[0])[:, rank].tolist()
        names = f"{near}F {far}F {far}I {near}I {far}W {near}W".split()
        shown = {name: step for step, name in enumerate(row.split()) if name != "."}
        assert shown == dict(zip(names, block))
    assert len(rows) == 3


@pytest.mark.parametrize("make", [v_half, v_min])
@pytest.mark.parametrize("d", [2, 3, 8])
def test_there_is_no_bubble_in_steady_state(make, d):
    # Each further microbatch costs just its own computations.
    makespans = [simulate(make(d, m), UNIT).makespan for m in (16, 17, 40)]
    assert makespans[1] - makespans[0] == 6
    assert makespans[2] - makespans[0] == 6 * 24


@pytest.mark.parametrize("make, held", [(v_half, 5), (v_min, 4)])
def test_the_bound_of_memory_is_reached(make, held):
    assert max(make(8, 64).validate().held) == held


@pytest.mark.parametrize("pace, turns", BLOCKS)
@given(st.integers(1, 200))
def test_actions_of_a_block_do_not_meet(pace, turns, d):
    block = _block(d, pace, turns)
    assert all(len({*steps}) == 6 for steps in (block % 6).T.tolist())
    near, far, far_input, near_input, far_weight, near_weight = block
    assert (near[1:] > near[:-1]).all() and (far[1:] < far[:-1]).all()
    assert (far_input[1:] > far_input[:-1]).all()
    assert (near_input[1:] < near_input[:-1]).all()
    assert far[-1] > near[-1] and far_input[0] > far[0]
    assert near_input[-1] > far_input[-1]
    assert (far_weight > far_input).all() and (near_weight > near_input).all()


@quick
@given(st.sampled_from([v_half, v_min]), ranks, microbatches)
def test_ranks_do_not_wait_with_weight_gradients_left(make, d, m):
    timeline = simulate(make(d, m), UNIT)
    for rank in range(d):
        events = [*timeline.rank_events(rank)]
        last = max(i for i, event in enumerate(events) if event.what.kind == "F")
        pending = sum({"I": 1, "W": -1}.get(e.what.kind, 0) for e in events[:last])
        for event, following in zip(events[last:], events[last + 1 :]):
            pending += {"I": 1, "W": -1}.get(event.what.kind, 0)
            assert following.start == event.end or not pending


@quick
@given(st.integers(2, 8), st.tuples(*[st.integers(2, 9)] * 3))
def test_v_half_waits_only_where_times_differ_much(d, times):
    forward, inputs, weights = times
    costs = Costs(*times)
    few, many = (simulate(v_half(d, m), costs).makespan for m in (30, 40))
    if max(forward, inputs) <= min(forward, inputs) + weights / 2:
        assert many - few == 10 * 2 * sum(times)


def test_v_min_waits_where_times_differ():
    few, many = (simulate(v_min(4, m), Costs(2, 3, 2)).makespan for m in (30, 40))
    assert many - few > 10 * 2 * (2 + 3 + 2)
