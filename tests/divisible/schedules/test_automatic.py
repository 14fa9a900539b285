import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import schedules, simulate
from divisible.schedules import Costs
from divisible.schedules.actions import ScheduleError, Transfer
from divisible.schedules.automatic import (
    N_TIMED,
    N_WARM,
    ScheduleTrial,
    first_schedule,
    measured_costs,
)
from divisible.schedules.recomputation import recompute
from divisible.schedules.timeline import Timeline
from tests.support.examples import examples


def placements(n_ranks):
    line = list(range(n_ranks))
    return st.sampled_from([line, line * 2, line + line[::-1], line * 3])


@st.composite
def cases(draw):
    """Where stages are, how many microbatches there are, and what they cost."""
    stage_ranks = draw(st.integers(1, 4).flatmap(placements))
    n = len(stage_ranks)
    seconds = st.lists(st.sampled_from([0.5, 1.0, 1.5, 4.0]), min_size=n, max_size=n)
    costs = Costs(
        *(draw(seconds) for _ in range(3)), latency=draw(st.sampled_from([0, 0.5]))
    )
    return stage_ranks, draw(st.integers(1, 7)), costs


def measured(schedule, costs):
    """Returns a simulated timeline with the waits that a pipeline records."""
    timeline = simulate(schedule, costs)
    rank_of, last = schedule.stage_ranks, schedule.n_stages - 1
    ends = {str(event.what): event.end for event in timeline}
    events = []
    for rank in range(timeline.n_ranks):
        free = 0.0
        for event in timeline.rank_events(rank):
            what = event.what
            source = what.stage + {"F": -1, "I": 1, "B": 1}.get(what.kind, 0)
            if 0 <= source <= last and rank_of[source] != rank:
                supplier = what._replace(stage=source)
                arrival = max(free, ends[str(supplier)] + costs.latency)
                message = Transfer(supplier, rank_of[source], "receive")
                events.append((rank, message, free, arrival, "wait"))
            events.append(event)
            free = event.end
    return Timeline(events, timeline.n_ranks)


@pytest.mark.slow
@examples(100)
@given(cases())
def test_measured_costs(case):
    stage_ranks, n_microbatches, costs = case
    first = first_schedule(stage_ranks, n_microbatches)
    timeline = measured(first, costs)
    found = measured_costs([timeline, timeline], len(stage_ranks))
    for name in ("forward", "backward_input", "backward_weight"):
        assert getattr(found, name) == pytest.approx(getattr(costs, name))
    # The first microbatch is waited for at every edge between ranks.
    between = [a != b for a, b in zip(stage_ranks, stage_ranks[1:])]
    assert np.array(found.transfer)[between] == pytest.approx(costs.latency)


def test_a_backward_that_is_not_split_counts_as_input_gradients():
    costs = Costs([1.0, 2.0], [2.0, 3.0], [4.0, 5.0])
    timeline = simulate(schedules.one_f_one_b(2, 3), costs)
    found = measured_costs([timeline], 2)
    assert found.backward_input == [6.0, 8.0] and found.backward_weight == [0.0, 0.0]


@pytest.mark.slow
@examples(60)
@given(cases(), st.sampled_from(["never", "except_last", "always"]))
def test_the_choice_is_the_fastest_that_fits(case, checkpoint):
    stage_ranks, n_microbatches, costs = case
    n_ranks = max(stage_ranks) + 1
    first = first_schedule(stage_ranks, n_microbatches)
    timeline = measured(recompute(first, checkpoint), costs)
    trial = ScheduleTrial(stage_ranks, n_microbatches, checkpoint)
    asked = []
    while not trial.note(lambda: asked.append(1) or timeline):
        assert len(asked) < N_TIMED
    assert len(asked) == N_TIMED
    chosen = trial.choose()
    chosen.validate()
    assert chosen.stage_ranks == tuple(stage_ranks)
    assert chosen.n_microbatches == n_microbatches
    found = simulate(chosen, costs)
    limit = min(n_microbatches, n_ranks)
    assert (found.peak_held <= limit).all()
    others = [first]
    for name in schedules.NAMES:
        try:
            others.append(
                schedules.create(name, len(stage_ranks), n_microbatches, n_ranks)
            )
        except ScheduleError:
            continue
    for other in others:
        if other.stage_ranks != tuple(stage_ranks):
            continue
        other = simulate(recompute(other, checkpoint), costs)
        if (other.peak_held <= limit).all():
            assert found.makespan <= other.makespan * (1 + 1e-6)


def choose(stage_ranks, n_microbatches, costs, checkpoint):
    """Returns what has been running and what is chosen, by simulated times."""
    first = recompute(first_schedule(stage_ranks, n_microbatches), checkpoint)
    timeline = measured(first, costs)
    trial = ScheduleTrial(stage_ranks, n_microbatches, checkpoint)
    while not trial.note(lambda: timeline):
        pass
    return first, trial.choose()


@pytest.mark.parametrize("checkpoint", ["never", "except_last", "always"])
def test_the_choice_is_not_slower_than_what_was_running(checkpoint):
    weights = [4.0, 1.5, 4.0, 4.0]
    costs = Costs([0.5, 1.0, 1.0, 1.5], [0.5, 1.0, 1.0, 1.5], weights)
    first, chosen = choose([0, 1, 0, 1], 2, costs, checkpoint)
    running = simulate(first, costs).makespan
    assert simulate(chosen, costs).makespan <= running
    if checkpoint == "always":
        assert running == 26.5


def test_a_schedule_is_made_for_stages_that_recompute():
    """The forward that runs again is a part of what goes before a gradient."""
    costs = Costs([1.5, 0.5, 1.5, 0.5], [1.5, 4.0, 0.5, 1.5], [1.5, 1.5, 0.5, 1.0])
    first, chosen = choose([0, 1, 0, 1], 5, costs, "always")
    without = schedules.list_schedule(costs, 5, 2, [0, 1, 0, 1])
    assert simulate(recompute(without, "always"), costs).makespan == 56.5
    assert simulate(first, costs).makespan == 56.0
    assert simulate(chosen, costs).makespan == 52.5


def test_warm_minibatches_are_not_timed():
    trial = ScheduleTrial([0, 1], 2, "never")
    for _ in range(N_WARM):
        assert not trial.note(lambda: pytest.fail("timed"))


@pytest.mark.parametrize(
    "stage_ranks, name",
    [
        ((0, 1, 2), "zb_h1"),
        ((0, 1, 2) * 2, "interleaved_zb"),
        ((0, 1, 2, 1, 2, 0), "list"),
    ],
)
def test_a_name_if_there_is_one_that_splits_the_backward(stage_ranks, name):
    costs = Costs(*(([1.0] * len(stage_ranks),) * 3))
    _, chosen = choose(stage_ranks, 6, costs, "never")
    assert chosen.name == name
