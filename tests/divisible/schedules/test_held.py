"""What schedules hold: by walking their actions, and by closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.schedules import one_f_one_b
from divisible.schedules.absences import absences_on
from divisible.schedules.catalogue import ONE_PER_RANK, create
from divisible.schedules.held import moments, peaks
from divisible.schedules.recomputation import (
    RECOMPUTATIONS,
    recompute,
    recomputed_share,
)
from tests.support.examples import examples
from tests.support.schedules import held_moments, named_schedules

quick = examples(80)
weights = st.lists(st.integers(0, 9), min_size=3, max_size=3)


@quick
@given(named_schedules(), st.sampled_from(RECOMPUTATIONS))
def test_no_moment_is_missing_and_none_is_idle(schedule, checkpoint):
    schedule = recompute(schedule, checkpoint)
    found = np.stack(moments(schedule)[:3])
    for stage, walked in enumerate(held_moments(schedule)):
        mine = {tuple(row) for row in found[:, :, stage].T.tolist()} - {(0, 0, 0)}
        expected = {
            a
            for a in walked
            if not any(a != b and all(map(int.__le__, a, b)) for b in walked)
        }
        assert mine == expected


@quick
@given(named_schedules(), st.sampled_from(RECOMPUTATIONS), st.data())
def test_a_rank_holds_what_its_stages_hold_at_one_time(schedule, checkpoint, data):
    schedule = recompute(schedule, checkpoint)
    sizes = np.array([data.draw(weights) for _ in range(schedule.n_stages)]).T
    checkpoints, graphs, pending = sizes
    held = peaks(schedule, checkpoints + graphs, pending, checkpoints)
    # Each stage alone holds no more than all together, and those no more than if all
    # were at their peak at one time.
    alone = (sizes[:, None] * np.stack(moments(schedule)[:3])).sum(axis=0).max(axis=0)
    for rank, peak in enumerate(held):
        mine = [alone[stage] for stage in schedule.rank_stages(rank)]
        assert max(mine) <= peak <= sum(mine)


def closed_forms(name, n_stages, m, checkpoint):
    """Returns the greatest in flight, graphs and pending of each stage, and together.

    With ``n_stages`` of d: of ``'1f1b'`` stage i has min(m, d - i) in flight, of
    ``'zb_h1'`` besides min(m, i + 1) pending, of ``'zb_h2'`` min(m, 2 (d - i) - 1) and
    min(m, 2 i + 1); together min(m, d) and min(m, 2 d - 1).
    """
    stage = np.arange(n_stages)
    if name == "gpipe":
        in_flight, pending = np.full(n_stages, m), np.zeros(n_stages, int)
        together = in_flight
    elif name == "1f1b":
        in_flight = np.minimum(m, n_stages - stage)
        pending, together = np.zeros(n_stages, int), in_flight
    else:
        depth = {"zb_h1": 1, "zb_h2": 2}[name]
        in_flight = np.minimum(m, depth * (n_stages - 1 - stage) + 1)
        pending = np.minimum(m, depth * stage + 1)
        together = np.full(n_stages, min(m, depth * (n_stages - 1) + 1))
    most = {"never": math.inf, "except_last": 2, "always": 1}[checkpoint]
    return in_flight, np.minimum(in_flight, most), pending, together


KNOWN = ["gpipe", "1f1b", "zb_h1", "zb_h2"]


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("checkpoint", RECOMPUTATIONS)
def test_closed_forms(name, checkpoint):
    for n_stages in (*range(1, 8), 16):
        for m in (1, 2, 3, 4, 7, 8, 15, 16, 17, 64):
            schedule = recompute(create(name, n_stages, m), checkpoint)
            in_flight, graphs, pending = moments(schedule)[:3]
            most = closed_forms(name, n_stages, m, checkpoint)
            assert in_flight.max(axis=0).tolist() == most[0].tolist()
            assert graphs.max(axis=0).tolist() == most[1].tolist()
            assert pending.max(axis=0).tolist() == most[2].tolist()
            assert (in_flight + pending).max(axis=0).tolist() == most[3].tolist()
            if name in ("gpipe", "1f1b"):
                # All at one time.
                assert len(in_flight) == 1
            if checkpoint == "never":
                assert (graphs == in_flight).all()


@pytest.mark.parametrize("name", ONE_PER_RANK)
def test_the_share_that_is_recomputed(name):
    """Where each backward follows its forward at once nothing is run again."""
    for n_stages in (1, 2, 5):
        for m in (1, 2, 8):
            for checkpoint, share in (
                ("never", 0.0),
                ("except_last", 1 - 1 / m),
                ("always", float(m > 1)),
            ):
                expected = np.full(n_stages, share)
                if name != "gpipe":
                    expected[-1] = 0.0
                schedule = recompute(create(name, n_stages, m), checkpoint)
                assert recomputed_share(schedule) == pytest.approx(expected)


def walk_in_half(schedule, rank, inputs, graphs, pending, saved):
    """Walks a rank's actions: what it holds at most, and what each stage does.

    A microbatch has all bytes during its own actions, and fewer in between.
    """
    actions = schedule.actions[rank]
    again = {(a.stage, m) for a in actions for m in a.microbatches if a.kind == "R"}
    leaves, returns = absences_on(schedule, rank)
    away = dict(zip(leaves.tolist(), returns.tolist()))
    held, back, most, alone = {}, {}, 0, np.zeros(schedule.n_stages)
    for position, action in enumerate(actions):
        s, kind = action.stage, action.kind
        after = dict(held)
        for m in action.microbatches:
            has_graph = kind == "R" or (kind == "F" and (s, m) not in again)
            if kind in "FR":
                after[s, m] = inputs[s] + graphs[s] * has_graph
            else:
                after[s, m] = pending[s] * (kind == "I")
        for now in (held, after):
            mine = np.zeros(schedule.n_stages)
            for key, size in now.items():
                waits = position < back.get(key, (0, 0))[0]
                mine[key[0]] += size - waits * back.get(key, (0, 0))[1]
            most, alone[s] = max(most, mine.sum()), max(alone[s], mine[s])
        held = after
        if position in away:
            less = saved[0][s] + saved[1][s] * ((s, action.microbatch) not in again)
            for m in action.microbatches:
                back[s, m] = away[position], less
    return most, alone


@quick
@given(named_schedules(), st.sampled_from(RECOMPUTATIONS), st.data())
def test_what_waits_takes_fewer_bytes(schedule, checkpoint, data):
    schedule = recompute(schedule, checkpoint)
    parts = [data.draw(weights) for _ in range(schedule.n_stages)]
    inputs, graphs, pending = 4 * np.array(parts).T
    saved = inputs // 2, graphs // 4
    together = saved[0] + saved[1], saved[0]
    found = peaks(schedule, inputs + graphs, pending, inputs, saved=together)
    alone = np.zeros(schedule.n_stages)
    for rank in range(schedule.n_ranks):
        most, of_stages = walk_in_half(schedule, rank, inputs, graphs, pending, saved)
        assert found[rank] == most
        alone += of_stages
    in_flight, graph, late, waits, waits_with = moments(schedule, in_half=True)
    worst = in_flight * inputs + graph * graphs + late * pending
    worst = (worst - waits * saved[0] - waits_with * saved[1]).max(axis=0)
    assert worst.tolist() == alone.tolist()


def test_half_of_all_but_one():
    schedule = create("gpipe", 2, 8)
    in_flight, graphs, _, waiting, _ = moments(schedule, in_half=True)
    assert in_flight.max() == 8 and (in_flight - waiting).max() == 1
    saved = np.array([4, 4]), np.array([0, 0])
    assert peaks(schedule, *np.full((3, 2), 8), saved=saved) == (36, 36)


def test_evaluation_holds_nothing():
    found = moments(one_f_one_b(3, 4).forward_only())
    assert [counts.tolist() for counts in found] == [[[0, 0, 0]]] * 5


def test_large_schedules_are_no_trouble():
    in_flight, graphs, *_ = moments(recompute(one_f_one_b(64, 512)))
    assert in_flight.tolist() == [[*range(64, 0, -1)]]
    assert (graphs == 1).all()
