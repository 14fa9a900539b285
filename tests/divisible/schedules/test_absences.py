"""When microbatches are on disk, and what that costs and saves in a simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import simulate
from divisible.schedules import Costs, create, gpipe, one_f_one_b
from divisible.schedules.absences import absences, absences_on
from divisible.schedules.held import moments, peaks
from divisible.schedules.recomputation import recompute

SCHEDULES = st.builds(
    lambda name, n, m, checkpoint: recompute(create(name, n, m), checkpoint),
    st.sampled_from(["gpipe", "1f1b", "zb_h1", "zb_h2"]),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from(["never", "always"]),
)


def seen_along(actions):
    """Returns the same of one rank, by going along its actions."""
    forwards, found = {}, []
    for position, action in enumerate(actions):
        which = action.stage, action.microbatch
        if action.kind == "F":
            forwards[which] = position
        elif which in forwards:
            leaves = forwards.pop(which)
            if position - leaves > 1:
                found.append((leaves, position))
    return sorted(found)


@given(schedule=SCHEDULES)
def test_they_are_those_that_a_rank_sees_along_its_actions(schedule):
    wanted = []
    for rank in range(schedule.n_ranks):
        first = int(schedule.offsets[rank])
        seen = seen_along(list(schedule.actions[rank]))
        assert list(zip(*(a.tolist() for a in absences_on(schedule, rank)))) == seen
        wanted += [(first + leaves, first + returns) for leaves, returns in seen]
    assert list(zip(*(a.tolist() for a in absences(schedule)))) == sorted(wanted)


def test_without_backwards_nothing_leaves():
    schedule = gpipe(n_stages=2, n_microbatches=4).forward_only()
    assert absences(schedule).leaves.size == 0


@given(
    schedule=SCHEDULES,
    on_disk=st.lists(st.booleans(), min_size=4, max_size=4),
    seed=st.integers(0, 9),
)
def test_memory_has_no_more_than_what_is_not_away(schedule, on_disk, seed):
    n = schedule.n_stages
    on_disk = np.array(on_disk[:n])
    random = np.random.RandomState(seed)
    inputs, graphs, pending = random.randint(1, 9, (3, n)).astype(float)
    found = peaks(schedule, inputs + graphs, pending, inputs, on_disk)
    wanted = [0.0] * n
    most = np.zeros(n)
    for rank in range(n):
        actions = list(schedule.actions[rank])
        away = seen_along(actions) if on_disk[rank] else []
        held: dict = {}
        for position, action in enumerate(actions):
            s, m = action.stage, action.microbatch
            is_again = any(
                a.kind == "R" and a.microbatch == m and a.stage == s for a in actions
            )
            if action.kind == "F":
                held[m] = inputs[s] + graphs[s] * (not is_again)
            elif action.kind == "R":
                held[m] = inputs[s] + graphs[s]
            elif action.kind in "BI":
                held[m] = pending[s] * (action.kind == "I")
            else:
                held[m] = 0.0
            gone = {
                actions[leaves].microbatch
                for leaves, returns in away
                if leaves + 2 <= position <= returns - 2
            }
            now = sum(value for m, value in held.items() if m not in gone)
            wanted[rank] = max(wanted[rank], now)
        most[rank] = wanted[rank]
    assert list(found) == [round(each) for each in wanted]
    # What a search reckons with is the same.
    in_flight, graph, late, *_ = moments(schedule, on_disk)
    worst = (in_flight * inputs + graph * graphs + late * pending).max(axis=0)
    assert worst.tolist() == most.tolist()


def test_a_fast_disk_takes_no_time_and_a_slow_one_all():
    schedule = gpipe(n_stages=2, n_microbatches=8)
    free = Costs(1.0, 1.0, 1.0, activation_bytes=10)
    without = simulate(schedule, free)
    assert without.peak_memory.tolist() == [80, 80]
    hidden = Costs(1.0, 1.0, 1.0, activation_bytes=10, write=0.5, read=0.5)
    timeline = simulate(schedule, hidden)
    # The first backward of the last stage, which follows at once, has to wait: the
    # disk has been asked for it before the last forward began.
    assert without.makespan <= timeline.makespan <= without.makespan + 1
    assert timeline.peak_memory.tolist() == [30, 30]
    slow = Costs(1.0, 1.0, 1.0, activation_bytes=10, write=50.0, read=0.0)
    timeline = simulate(schedule, slow, links="serial")
    # All eight are written, one after the other.
    assert timeline.makespan > 8 * 50


def test_by_hand():
    # One rank: F0 F1 F2 B0 B1 B2, forward 1, backward 2, write 3, read 2.
    costs = Costs(1.0, 2.0, 0.0, write=3.0, read=2.0)
    schedule = gpipe(n_stages=1, n_microbatches=3)
    timeline = simulate(schedule, costs)
    # F0 0..1, written 1..4; F1 1..2, waits until 4, written 4..7. Before F2, at 4, 0 is
    # asked for: it needs its write only, but comes behind 1's: 7..9. F2 4..5 waits
    # until 7, written 9..12. B0 at 7 waits until 9, and asks for 1: 12..14.
    # B0 9..11; B1 waits until 14, asks for 2: 14..16, B1 14..16, B2 16..18.
    found = [(str(event.what), event.start, event.end) for event in timeline]
    assert found == [
        ("0F0", 0, 1),
        ("0F1", 1, 4),
        ("0F2", 4, 7),
        ("0B0", 7, 11),
        ("0B1", 11, 16),
        ("0B2", 16, 18),
    ]


def test_only_where_messages_overlap():
    costs = Costs(1.0, 1.0, 1.0, write=1.0)
    with pytest.raises(ValueError, match="overlap=True"):
        simulate(one_f_one_b(2, 2), costs, overlap=False)
    with pytest.raises(ValueError, match="Costs.read must be finite"):
        Costs(1.0, 1.0, 1.0, read=-1.0)
