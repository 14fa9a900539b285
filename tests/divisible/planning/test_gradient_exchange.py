"""Bytes, times and memory of an exchange, as `data_parallel` has them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_parallel import simulate_exchange
from divisible import LayerCost, Network, Profile, schedules, simulate
from divisible.communication.wire import CHUNK, WINDOW, WIRE
from divisible.planning.coding import CodingRate
from divisible.planning.gradient_exchange import GradientExchange, Wire
from divisible.schedules.costs import Costs

SLOW = CodingRate(encode=100.0, decode=100.0)
FAST = CodingRate(encode=1e12, decode=1e12)
WIRES = st.sampled_from(list(WIRE.values()))


def exchange(wire="int8", replicas=2, coding=FAST, **options):
    return GradientExchange(replicas, WIRE[wire], coding, **options)


@given(WIRES, st.integers(2, 9), st.integers(1, 6000))
def test_it_sends_what_the_exchange_sends(wire, replicas, n):
    gradients = [np.zeros(n, np.float32)] * replicas
    sent = simulate_exchange(gradients, exchange_dtype=wire.name).sent_bytes
    most = GradientExchange(replicas, wire, FAST).sent_bytes(n)
    # Exactly between two; else the largest part may end with a block that is not whole.
    block = 0 if wire.name == "fp32" else wire.n_bytes(256, 256)
    assert sent <= most <= sent + (replicas - 2) * block


@given(WIRES, st.integers(2, 64), st.integers(0, 10**9))
def test_replicas_never_send_more_than_everything_twice(wire, replicas, n):
    sent = [GradientExchange(r, wire, FAST).sent_bytes(n) for r in (2, replicas)]
    # What one adds up is rounded up to whole blocks.
    block = wire.n_bytes(256, 256)
    assert sent[0] <= sent[1] + block
    assert sent[1] <= 2 * wire.n_bytes(n, 256) + replicas * block


@given(st.integers(2, 9), st.integers(1, 10**8), st.floats(1e3, 1e9))
def test_fewer_bits_are_never_slower_where_the_wire_is(replicas, n, bandwidth):
    """Scales make one byte of a few elements more than two."""
    n += 1000
    seconds = [
        exchange(wire, replicas).seconds(n, bandwidth, 1e-4, 1.0, True)
        for wire in ("int8", "e4m3", "bf16", "fp32")
    ]
    assert seconds[0] == seconds[1] <= seconds[2] <= seconds[3]
    if n > 10**5:
        assert seconds[3] > 1.9 * seconds[2] - 1e-3


@given(
    WIRES,
    st.integers(2, 9),
    st.integers(0, 10**8),
    st.floats(1e3, 1e9),
    st.booleans(),
    st.floats(1e6, 1e10),
)
def test_it_takes_as_long_as_the_slower_of_wire_and_coding(
    wire, replicas, n, bandwidth, overlap, rate
):
    one = GradientExchange(replicas, wire, CodingRate(rate, rate))
    seconds = one.seconds(n, bandwidth, 0.0, 1.0, overlap)
    parts = one.sent_bytes(n) / bandwidth, one.coding_seconds(n)
    assert max(parts) <= seconds <= sum(parts) * (1 + 1e-9)
    if not overlap or n <= CHUNK:
        assert seconds == pytest.approx(sum(parts))
    assert seconds <= one.seconds(n, bandwidth, 0.0, 1.0, False) * (1 + 1e-9)


def test_one_chunk_is_coded_before_it_travels_and_many_meanwhile():
    one = exchange("fp32", coding=CodingRate(3.5 * 2**20, 3.5 * 2**20))
    # A second of coding and four of the wire for each chunk.
    options = {"bandwidth": 2**20, "latency": 0.5, "speed": 1.0}
    assert one.seconds(CHUNK, **options, overlap=True) == 1 + 4 + 2 * 0.5
    assert one.seconds(8 * CHUNK, **options, overlap=True) == 8 * 4 + 1 + 2 * 0.5
    assert one.seconds(8 * CHUNK, **options, overlap=False) == 8 * 5 + 2 * 0.5
    assert one.seconds(0, **options, overlap=True) == 0


def spans(one, schedule, costs, elements, network, speeds=None):
    timeline = simulate(schedule, costs, overlap=network.overlap)
    n = schedule.n_ranks
    speeds = np.ones(n) if speeds is None else np.array(speeds)
    one = one.on(network.links(n + 1), speeds)
    found = one.spans(schedule, timeline, elements)
    least = one.least_seconds(schedule, elements)
    return timeline, found, least


def test_later_stages_exchange_while_earlier_ones_end():
    """::

    rank 0  0F0 0F1  .  0B0  .  0B1 ====            of 2 s
    rank 1   .  1F0 1B0 1F1 1B1 ====
    """
    schedule = schedules.one_f_one_b(2, 2)
    costs = Costs(1.0, 0.5, 0.5)
    one, network = exchange("fp32"), Network(bandwidth=200.0)
    timeline, found, least = spans(one, schedule, costs, [100, 100], network)
    assert timeline.makespan == 6
    assert found.start.tolist() == [6, 5]
    assert found.end.tolist() == pytest.approx([8, 7])
    assert least == pytest.approx([2, 2])
    # The opening and both phases have a latency.
    _, found, _ = spans(one, schedule, costs, [100, 100], Network(200.0, 0.25))
    assert found.end - found.start == pytest.approx([2.75, 2.75])


def test_a_stage_without_parameters_exchanges_nothing():
    schedule = schedules.one_f_one_b(2, 2)
    network = Network(bandwidth=200.0, latency=1.0)
    _, found, least = spans(
        exchange("fp32"), schedule, Costs(1.0, 0.5, 0.5), [0, 50], network
    )
    assert found.start[0] == found.end[0]
    assert (least > 0).tolist() == [False, True]


def test_weight_gradients_decide_when_it_may_begin():
    schedule = schedules.zero_bubble_h1(2, 4)
    timeline, found, _ = spans(
        exchange("fp32"), schedule, Costs(1, 1, 1), [9, 9], Network(100.0)
    )
    last = [event.end for event in timeline if str(event.what).endswith("W3")]
    assert found.start.tolist() == last


def test_two_stages_of_a_rank_exchange_one_after_the_other():
    schedule = schedules.zero_bubble_v(2, 4)
    costs, network = Costs(1, 1, 1), Network(bandwidth=10.0)
    elements = [20, 20, 20, 20]
    timeline, found, _ = spans(exchange("fp32"), schedule, costs, elements, network)
    ready = np.array(
        [max(e.end for e in timeline if e.what.stage == s) for s in range(4)]
    )
    for rank in range(2):
        first, second = sorted(schedule.rank_stages(rank), key=lambda s: ready[s])
        assert found.start[first] == ready[first] < ready[second]
        assert found.start[second] == max(ready[second], found.end[first])
    # Without overlap nothing travels before the rank has computed all.
    alone = replace(network, overlap=False)
    timeline, found, _ = spans(exchange("fp32"), schedule, costs, elements, alone)
    for rank in range(2):
        last = max(event.end for event in timeline.rank_events(rank))
        stages = schedule.rank_stages(rank)
        assert min(found.start[s] for s in stages) == last


def test_what_a_rank_codes_while_it_computes_delays_it():
    schedule = schedules.zero_bubble_v(2, 4)
    options = schedule, Costs(1, 1, 1), [20, 20, 20, 20], Network(bandwidth=1e9)
    timeline, free, _ = spans(exchange("fp32"), *options)
    _, slow, _ = spans(exchange("fp32", coding=SLOW), *options)
    _, fast, _ = spans(exchange("fp32", coding=SLOW), *options, speeds=[10, 10])
    coding = SLOW.seconds(20, 2)
    for rank in range(2):
        events = timeline.rank_events(rank)
        early, late = sorted(schedule.rank_stages(rank), key=lambda s: free.start[s])
        idle = events[-1].end - free.start[early]
        idle -= sum(e.end - e.start for e in events if e.start >= free.start[early])
        delay = slow.start[late] - free.start[late]
        assert delay == pytest.approx(max(0.0, coding - idle))
        assert slow.end[late] - slow.start[late] == pytest.approx(coding)
        assert fast.end[late] - fast.start[late] == pytest.approx(coding / 10, 1e-5)


def test_error_feedback_keeps_two_arrays():
    layers = [LayerCost(1, 1, 1, parameter_bytes=400, optimizer_bytes=7)]
    layers += [LayerCost(1, 1, 1, parameter_bytes=400, n_parameters=200)]
    profile = Profile(layers, n_samples=4)
    assert exchange().with_residuals(profile) is profile
    kept = exchange(error_feedback=True).with_residuals(profile)
    assert kept.column("optimizer_bytes").tolist() == [7 + 800, 1600]
    assert kept.column("n_gradients").tolist() == [100, 200]


@given(WIRES, st.integers(2, 16), st.integers(1, 10**9))
def test_buffers_are_of_a_few_chunks_at_most(wire, replicas, n):
    one = GradientExchange(replicas, wire, FAST)
    assert 0 < one.buffer_bytes(n) <= 3 * WINDOW * (wire.n_bytes(CHUNK, 256) + 4)
    assert one.buffer_bytes(0) == 0


def test_the_rate_is_given_or_the_profiles_or_measured():
    profile = Profile([LayerCost(1, 1, 1)], n_samples=1, coding={"int8": SLOW})
    assert Wire("int8").exchange(1, profile) is None
    assert Wire("int8").exchange(2, profile).coding is SLOW
    assert Wire("int8", coding=FAST).exchange(2, profile).coding is FAST
    assert Wire("bf16").exchange(2, profile).coding.encode > 1e6
