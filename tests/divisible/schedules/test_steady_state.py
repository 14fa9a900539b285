"""The seconds of a minibatch in a long run."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.schedules.catalogue import CATALOGUE, NAMES, create
from divisible.schedules.costs import Costs
from divisible.schedules.simulator import simulate
from divisible.schedules.steady_state import steady_seconds
from tests.support.examples import examples

#: The minibatches of a run that is long enough for its mean to settle.
LONG = 40


def seconds_of(name, d, m, costs, **options):
    schedule = create(name, d * CATALOGUE[name].stages_per_rank, m, d)
    run = partial(simulate, schedule, costs, **options)
    one = run()
    versions = schedule.weight_versions
    return one, steady_seconds(one, lambda n: run(n_minibatches=n), versions), run


@st.composite
def runs(draw):
    name = draw(st.sampled_from(NAMES))
    d, m = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    n = d * CATALOGUE[name].stages_per_rank
    times = st.floats(0.01, 10)
    columns = (draw(st.lists(times, min_size=n, max_size=n)) for _ in range(3))
    rate = draw(st.sampled_from([0.0, 0.1, 2.0]))
    costs = Costs(*columns, transfer=rate, latency=draw(st.floats(0, 3)))
    links = draw(st.sampled_from(["parallel", "serial"]))
    return name, d, m, costs, links


@examples(60)
@given(runs())
def test_a_minibatch_adds_at_most_its_makespan_and_at_least_the_busiest_rank(run):
    *place, links = run
    one, seconds, simulated = seconds_of(*place, links=links)
    slack = 1e-9 * one.makespan
    assert one.busy.max() - slack <= seconds
    assert seconds <= one.makespan or place[0] == "pipedream_2bw"
    if place[1] == 1:
        assert seconds == pytest.approx(one.makespan)
    # Counted where the first minibatches, of which the first waits most, are over.
    long = simulated(n_minibatches=LONG).makespan
    half = simulated(n_minibatches=LONG // 2).makespan
    mean = (long - half) / (LONG - LONG // 2)
    assert seconds == pytest.approx(mean, rel=0.02)


@pytest.mark.parametrize(
    "name, alone, steady",
    [
        ("1f1b", 33, 33),
        ("zb_h1", 27, 27),
        ("zb_h2", 27, 24),
        ("pipedream_2bw", 33, 24),
    ],
)
def test_only_schedules_that_end_in_the_order_of_beginning_gain(name, alone, steady):
    one, seconds, _ = seconds_of(name, 4, 8, Costs(1.0, 1.0, 1.0))
    assert (one.makespan, seconds) == (alone, steady)


def test_a_minibatch_of_two_versions_may_add_more_than_one_alone_takes():
    costs = Costs([1.0, 1.0, 1.0, 1.0], [1.0, 3.0, 1.0, 1.0], 1.0)
    one, seconds, simulated = seconds_of("pipedream_2bw", 4, 2, costs)
    runs = [simulated(n_minibatches=n).makespan for n in (LONG // 2, LONG)]
    assert seconds == pytest.approx((runs[1] - runs[0]) / (LONG // 2))
    assert seconds > one.makespan


def test_without_overlap_of_messages():
    costs = Costs(1.0, 1.0, 1.0, transfer=0.1)
    one, seconds, _ = seconds_of("zb_h2", 4, 8, costs, overlap=False)
    assert one.busy.max() < seconds < one.makespan
