"""Schedules with recomputation: order, memory, time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import simulate
from divisible.schedules import gpipe, one_f_one_b, zero_bubble_h1
from divisible.schedules.actions import ScheduleError
from divisible.schedules.costs import Costs
from divisible.schedules.recomputation import RECOMPUTATIONS, recompute
from divisible.schedules.schedule import Schedule
from tests.support.schedules import named_schedules


@given(named_schedules(), st.sampled_from(RECOMPUTATIONS))
def test_every_schedule_stays_valid(schedule, mode):
    again = recompute(schedule, mode)
    report = again.validate()
    assert Schedule.parse(str(again)) == again
    # Without the R it is the same as before.
    for row, before in zip(again.actions, schedule.actions):
        assert [action for action in row if action.kind != "R"] == list(before)
        for k, action in enumerate(row):
            if action.kind == "R":
                assert row[k + 1].kind in "BI" and row[k + 1][::2] == action[::2]
    if mode == "never":
        assert again == schedule and set(report.inputs) == {0}
    # Doing it twice changes nothing.
    assert recompute(again, mode) == again


@given(named_schedules())
def test_at_most_one_microbatch_per_stage_is_held_in_full(schedule):
    assert max(recompute(schedule).validate().stage_in_flight) == 1


def test_the_last_microbatch_is_left_out():
    kept = [
        action.microbatch
        for action in recompute(gpipe(2, 4), "except_last").actions[0]
        if action.kind == "R"
    ]
    assert kept == [0, 1, 2]


def test_a_backward_right_behind_its_forward_needs_no_recomputation():
    again = recompute(one_f_one_b(3, 5))
    assert {action.kind for action in again.actions[2]} == {"F", "B"}
    assert {action.kind for action in again.actions[0]} == {"F", "B", "R"}


def test_memory_and_time_are_predicted():
    costs = Costs(
        forward=1.0,
        backward_input=1.0,
        backward_weight=1.0,
        activation_bytes=100,
        checkpoint_bytes=7,
    )
    d, m = 4, 6
    plain, again = gpipe(d, m), recompute(gpipe(d, m))
    timeline = simulate(again, costs)
    # All inputs wait, but one whose activations are there again.
    assert timeline.peak_memory.tolist() == [100 + 7 * (m - 1)] * d
    assert simulate(plain, costs).peak_memory.tolist() == [100 * m] * d
    assert again.validate().inputs == (m,) * d
    # The last stage runs m forwards more. The first R of the others fills a gap, so the
    # gradient passes through them as fast as before.
    extra = timeline.makespan - simulate(plain, costs).makespan
    assert extra == pytest.approx(m)


def test_recomputation_fits_into_the_gap_before_a_gradient():
    """R needs nothing from another rank, so it does not wait for the gradient."""
    costs = Costs(forward=1.0, backward_input=1.0, backward_weight=1.0)
    timeline = simulate(recompute(one_f_one_b(2, 1)), costs)
    assert timeline.makespan == simulate(one_f_one_b(2, 1), costs).makespan


WRONG = {
    "after its backward": ("0F0 0B0 0R0", "0B0 runs before 0R0"),
    "before its forward": ("0R0 0F0 0B0", "0R0 runs before 0F0"),
    "without a backward": ("0F0 0R0", "recomputes a forward for no backward"),
    "twice": ("0F0 0R0 0R0 0B0", "0R0 is there 2 times"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_places_are_refused(name):
    row, words = WRONG[name]
    with pytest.raises(ScheduleError, match=words):
        Schedule([row.split()]).validate()


def test_the_split_backward_is_recomputed_before_its_first_half():
    rows = recompute(zero_bubble_h1(2, 2)).actions
    assert " ".join(map(str, rows[0])) == "0F0 0F1 0R0 0I0 0W0 0R1 0I1 0W1"


def test_evaluation_recomputes_nothing():
    again = recompute(one_f_one_b(2, 3)).forward_only()
    assert (again.kind == 0).all()
    assert recompute(again) == again


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="never, except_last, always, not 'often'"):
        recompute(gpipe(1, 1), "often")


def test_large_schedules_are_no_trouble():
    again = recompute(one_f_one_b(64, 512))
    assert np.count_nonzero(again.kind == 4) == 63 * 512
