"""Simulated questions: their memory over time, with layers and without."""

from dataclasses import replace

import numpy as np
import pytest

from divisible import Plan, simulate
from divisible.explore.sources import Sources
from divisible.planning.plan_simulation import simulate_plan
from divisible.schedules import NAMES
from tests.support.explored import asked, plan_of, uneven_profile


@pytest.mark.parametrize("name", NAMES)
def test_the_most_that_a_rank_holds_is_what_the_timeline_counts(name):
    simulation = asked(schedule=name, ranks=3, microbatches=6)
    assert simulation.peaks == pytest.approx(simulation.timeline.peak_held.tolist())
    assert simulation.unit == "microbatches"


def test_levels_are_in_order_of_time_and_end_with_nothing():
    simulation = asked(schedule="zb_h1", ranks=3, microbatches=5, latency=0.3)
    for levels in simulation.levels:
        seconds = [second for second, _ in levels]
        assert seconds == sorted(seconds)
        assert levels[-1][1] == pytest.approx(0.0)
        assert max(seconds) <= simulation.timeline.makespan


def test_what_an_action_adds_counts_from_its_start():
    (levels,) = asked(schedule="gpipe", ranks=1, microbatches=2).levels
    assert levels == [(0, 0), (0, 1), (1, 2), (4, 1), (6, 0)]


def test_several_minibatches_follow_each_other():
    simulation = asked(schedule="1f1b", ranks=2, microbatches=4, minibatches=3)
    assert simulation.timeline.n_minibatches == 3
    assert len(simulation.events) == 3 * len(simulation.schedule)
    assert simulation.peaks == [2, 1]


def test_layers_give_bytes_of_which_the_most_is_what_plans_expect():
    sources = Sources(profiles=[uneven_profile()])
    simulation = asked(sources, schedule="zb_v", ranks=2, layers=True)
    assert simulation.unit == "bytes"
    model = sources.model(simulation.schedule)
    expected = model.rank_bytes(simulation.cuts)
    assert simulation.peaks == pytest.approx(expected.tolist())


def test_a_plan_is_simulated_as_by_its_own_command():
    profile, plan = uneven_profile(), plan_of()
    sources = Sources(plan, [profile])
    question = sources.first_question()
    simulation = asked(sources, **vars(question))
    own = simulate_plan(plan, profile)
    assert simulation.timeline.makespan == pytest.approx(own.makespan)
    assert simulation.cuts == plan.cuts
    assert np.allclose(simulation.peaks, own.peak_memory)


def test_a_given_latency_counts_instead_of_the_plans_link():
    sources = Sources(plan_of(), [uneven_profile()])
    free = asked(sources, ranks=2, microbatches=4, layers=True, message=0, latency=0)
    slow = asked(sources, ranks=2, microbatches=4, layers=True, message=0, latency=0.1)
    assert slow.timeline.makespan > free.timeline.makespan + 0.1
    assert simulate(slow.schedule, slow.costs).makespan == slow.timeline.makespan


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cuts": [0, 5, 9], "ranks": 2}, "make 2 stages of 9 layers"),
        ({"cuts": [0, 5, 10], "ranks": 3}, "but there are 3 stages of 10"),
        ({"ranks": 11}, "10 layers cannot be cut into 11 stages"),
    ],
)
def test_cuts_that_do_not_fit_are_refused(fields, words):
    with pytest.raises(ValueError) as caught:
        asked(Sources(profiles=[uneven_profile()]), layers=True, **fields)
    assert words in str(caught.value)


def test_layers_need_a_profile():
    with pytest.raises(ValueError, match="there is no profile"):
        asked(layers=True)


def test_a_plan_needs_profiles_of_its_layers():
    with pytest.raises(ValueError, match="needs the profiles"):
        Sources(plan_of())
    with pytest.raises(
        ValueError, match="of 10 layers, but the profile is of one of 4"
    ):
        Sources(plan_of(), [uneven_profile(4)])


def test_features_of_a_plan_without_a_control_are_named():
    profiles = [uneven_profile()]
    assert Sources(plan_of(), profiles).left_out == ""
    plan = plan_of(recompute="always", hold_in=("disk", "memory"), streamed=(1,))
    words = Sources(plan, profiles).left_out
    for each in ("recompute='always'", "hold_in=('disk', 'memory')", "streamed=(1,)"):
        assert each in words


def test_a_plan_with_a_schedule_of_its_own_begins_with_one_of_the_catalogue():
    profiles = [uneven_profile()]
    plan = replace(plan_of(), schedule="1f1b edited")
    sources = Sources(plan, profiles)
    assert sources.first_question().schedule == "1f1b"
    assert sources.left_out == (
        "The schedule of the plan, '1f1b edited', is not in the catalogue: draw its"
        " text on the page."
    )
    # Two stages on each rank, and no schedule.
    sources = Sources(Plan([0, 2, 5, 7, 10], 4, stages_per_rank=2), profiles)
    assert asked(sources, **vars(sources.first_question())).schedule.n_stages == 4
    assert sources.left_out == ""
