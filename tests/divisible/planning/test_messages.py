"""Messages are narrowed where coding is cheaper than sending, edge by edge."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import LayerCost, Machine, Network, Plan, Profile, best_plan
from divisible.communication.wire import WIRE
from divisible.planning.coding import CodingRate
from divisible.planning.message_plan import MessagePlan, narrowed_pairs
from divisible.planning.messages import Narrowing, both_ways
from divisible.planning.plan_simulation import simulate_plan

#: Elements of a message, and rates at which coding them both ways takes 2 ms.
N = 10**6
RATES = dict.fromkeys(WIRE, CodingRate(encode=1e9, decode=1e9))
SLOW, FAST = 1e7, 1e10


def profile_of(n_layers=4, n=N, **costs):
    layer = LayerCost(
        0.1, 0.1, 0.1, output_bytes=4 * n, parameter_bytes=4 * n, name="layer", **costs
    )
    return Profile([layer] * n_layers, n_samples=8, coding=RATES)


def planned(bandwidth, message_dtypes, n_ranks=4, profile=None):
    machine = Machine(n_ranks, network=Network(bandwidth))
    return best_plan(
        profile or profile_of(n_ranks),
        machine,
        microbatches=[4],
        schedules=["1f1b"],
        pipeline_ranks=[n_ranks],
        message_dtypes=message_dtypes,
    )


def test_only_slow_links_are_narrowed_and_the_plan_says_why():
    plan = planned([SLOW, FAST, SLOW], ["int8"])
    assert [each.pair for each in plan.messages] == [
        ("int8", "int8"),
        ("fp32", "fp32"),
        ("int8", "int8"),
    ]
    assert "messages between stages 0-1, 2-3 in int8" in plan.headline
    # A microbatch has a quarter of the samples.
    assert (
        "messages between stages 0 and 1: int8; int8 takes 25.4 ms and 500 us of"
        " coding, fp32 100 ms"
    ) in str(plan)
    assert (
        "messages between stages 1 and 2: fp32; fp32 takes 100 us, and coding"
        in str(plan)
    )


@pytest.mark.parametrize("bandwidth", [FAST, float("inf")])
def test_within_a_host_nothing_is_narrowed(bandwidth):
    plan = planned(bandwidth, ["int8", "int4", ("bf16", "e4m3")])
    assert narrowed_pairs(plan.messages) == ()
    without = planned(bandwidth, [])
    assert without.messages == ()
    assert plan.step_seconds == pytest.approx(without.step_seconds)


def test_directions_have_their_own_dtypes():
    plan = planned(SLOW, [("int8", "bf16")])
    assert {each.pair for each in plan.messages} == {("int8", "bf16")}
    plan = planned(SLOW, ["bf16", ("fp32", "int4")])
    assert {each.pair for each in plan.messages} == {("bf16", "int4")}


def test_numbers_of_float16_are_narrowed_below_16_bits():
    halves = profile_of(2, n_parameters=2 * N)
    assert {each.pair for each in planned(SLOW, ["bf16"], 2, halves).messages} == {
        ("fp32", "fp32")
    }
    assert {each.pair for each in planned(SLOW, ["int8"], 2, halves).messages} == {
        ("int8", "int8")
    }


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_the_simulation_of_the_plan_agrees(n_ranks, tmp_path):
    profile = profile_of(n_ranks)
    bandwidth = [SLOW, FAST, 3e7][: n_ranks - 1]
    plan = planned(bandwidth, ["int8", ("int4", "bf16")], n_ranks, profile)
    assert simulate_plan(plan, profile).makespan == pytest.approx(plan.step_seconds)
    plan.save(tmp_path / "plan.json")
    read = Plan.load(tmp_path / "plan.json")
    assert read.messages == plan.messages
    assert [m.reason for m in read.messages] == [m.reason for m in plan.messages]
    assert simulate_plan(read, profile).makespan == pytest.approx(plan.step_seconds)
    whole = simulate_plan(replace(plan, messages=()), profile)
    assert whole.makespan > 1.4 * plan.step_seconds
    assert plan.step_seconds >= plan.bound > 0


def test_what_a_step_with_narrow_messages_takes():
    """One microbatch through two stages: each encodes and decodes once each way."""
    plan = Plan([0, 1, 2], 1, "gpipe", messages=[MessagePlan("int8", "fp32")])
    machine = Machine(2, network=Network(SLOW), speeds=[1, 2])
    seconds = simulate_plan(plan, profile_of(2), machine=machine).makespan
    link = (WIRE["int8"].n_bytes(N, 256) + 4 * N) / SLOW
    assert seconds == pytest.approx(0.3 + 0.15 + link + 1e-3 + 0.5e-3)


@given(
    st.lists(st.floats(1e5, 1e11), min_size=3, max_size=3),
    st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
    st.lists(st.sampled_from(sorted(WIRE)), min_size=1, max_size=3),
    st.integers(0, 10**7),
)
def test_the_chosen_dtypes_are_the_fastest(bandwidth, speeds, names, n):
    profile = profile_of(4)
    n_bytes, bandwidth = np.full(3, 4.0 * n), np.array(bandwidth)
    speeds = np.array(speeds)

    def seconds(narrowing):
        ways = both_ways(narrowing, n_bytes, bandwidth, speeds)
        # A link works by itself, so coding counts double.
        return [each.link + 2 * (each.encode + each.decode) for each in ways]

    found = seconds(Narrowing.among(names, profile))
    for name in ["fp32", *names]:
        fixed = Narrowing.among([name] * 3, profile, fixed=True)
        for mine, other in zip(found, seconds(fixed)):
            assert (mine <= other * (1 + 1e-12)).all()


def test_messages_that_do_not_fit_the_plan_are_refused():
    with pytest.raises(
        ValueError, match="for 1 edge, but there are 2 between 3 stages"
    ):
        Plan([0, 1, 2, 3], messages=[MessagePlan()])
    with pytest.raises(TypeError, match="edge 0 of messages must be a MessagePlan"):
        Plan([0, 1, 2], messages=["int8"])
    with pytest.raises(ValueError, match="forward of a message plan must be one of"):
        MessagePlan("int9")
    with pytest.raises(ValueError, match="message_dtype must be one of"):
        planned(SLOW, ["float16"])
