"""Replicas of unequal speed have unequal parts of a minibatch."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import LayerCost, Machine, Network, Plan, Profile
from divisible.planning.coding import CodingRate
from divisible.planning.cut_plan import UncutPlan
from divisible.planning.cutting import cut_plan
from divisible.planning.disk import Disk
from divisible.planning.gradient_exchange import Wire
from divisible.planning.moves import simulated
from divisible.planning.plan_simulation import simulate_plan
from divisible.planning.search import best_plan
from divisible.planning.unequal_replicas import parts_by_speed, relative_loads
from divisible.planning.workload import Workload
from tests.support.examples import examples

PROFILE = Profile([LayerCost(1.0, 1.0, 1.0)] * 12, n_samples=64)
# What does not depend on the size of microbatches.
LATENCY = Profile([LayerCost(0.5, 0.5, 0.5)] * 12, n_samples=1)
OPTIONS = {
    "replicas": (2, 2),
    "pipeline_ranks": [2],
    "microbatches": [8],
    "schedules": ["1f1b"],
    "recompute": ["never"],
    "coding": CodingRate(1e9, 1e9),
}


def plan_for(speeds, profile=PROFILE, memory=None, **options):
    machine = Machine(4, memory, speeds=speeds)
    return best_plan(profile, machine, **{**OPTIONS, **options})


@given(
    st.lists(
        st.tuples(*[st.sampled_from([0.25, 0.5, 1.0, 1.5])] * 2),
        min_size=2,
        max_size=4,
    ),
    st.tuples(*[st.floats(0.1, 4)] * 2),
    st.integers(4, 64),
)
def test_replicas_end_together_up_to_a_sample(speeds, work, batch):
    speeds, work = np.array(speeds), np.array(work)
    parts = parts_by_speed(speeds, work, batch)
    assert sum(parts) == batch
    seconds = [max(n * work / each) for n, each in zip(parts, speeds)]
    rates = (speeds / work).min(axis=1)
    assert max(seconds) <= batch / rates.sum() + 1 / rates.min() + 1e-9


def test_loads_are_of_all_microbatches():
    loads = relative_loads([6, 3, 1], 2, lambda n: n + 1.0)
    np.testing.assert_allclose(loads, [1, 5 / 8, 2 / 8])


@pytest.mark.parametrize(
    "speeds, shares, cuts",
    [
        ([1, 1, 1, 1], None, [0, 6, 12]),
        ([1, 1, 0.5, 0.5], [43, 21], [0, 6, 12]),
        # Another cut helps both replicas alike, unequal parts would not.
        ([1, 0.5, 1, 0.5], None, [0, 8, 12]),
    ],
)
def test_a_fast_replica_gets_more(speeds, shares, cuts):
    plan = plan_for(speeds)
    assert (plan.shares, plan.cuts) == (shares, cuts)
    assert plan.step_seconds == pytest.approx(
        simulate_plan(plan, PROFILE, machine=Machine(4, speeds=speeds)).makespan
    )


def test_no_replica_waits_for_a_slower_one_in_all():
    speeds = [1, 1, 0.5, 0.5]
    plan = plan_for(speeds)
    equal = simulate_plan(
        replace(plan, shares=None), PROFILE, machine=Machine(4, speeds=speeds)
    ).makespan
    # 2/3 of the samples in place of a half, on ranks of twice the speed.
    assert plan.step_seconds == pytest.approx(equal * 2 / 3, rel=0.03)


@examples(8)
@given(st.lists(st.sampled_from([0.4, 0.5, 0.8, 1.0]), min_size=4, max_size=4))
def test_unequal_parts_are_no_slower_than_the_best_cut_for_equal_ones(speeds):
    plan = plan_for(speeds)
    best_equal = min(
        simulate_plan(
            Plan([0, k, 12], 8, "1f1b", replicas=2, exchange_dtype="fp32"),
            PROFILE,
            coding=OPTIONS["coding"],
            machine=Machine(4, speeds=speeds),
        ).makespan
        for k in range(1, 12)
    )
    assert plan.step_seconds <= best_equal * (1 + 1e-6)
    # Each replica by itself, with its own samples, is as fast as predicted.
    for replica, n_samples in enumerate(plan.shares or [32, 32]):
        alone = simulate_plan(
            replace(plan, replicas=1, shares=None),
            PROFILE,
            batch=n_samples,
            machine=Machine(2, speeds=speeds[2 * replica : 2 * replica + 2]),
        )
        assert alone.makespan <= plan.step_seconds * 1.15


def test_costs_that_do_not_grow_with_samples_are_reckoned_with():
    profiles = [LATENCY, replace(PROFILE, layers=[LayerCost(2, 2, 2)] * 12)]
    speeds = [1, 1, 0.5, 0.5]
    plan = plan_for(speeds, profiles, batch=256)
    assert plan.step_seconds == pytest.approx(
        simulate_plan(
            plan, profiles, batch=256, machine=Machine(4, speeds=speeds)
        ).makespan
    )
    a, b = plan.shares
    assert a + b == 256
    assert a > 2 * b - 3


def test_what_passes_over_a_disk_does_not_grow_with_samples():
    layers = {
        n: LayerCost(*[n / 64] * 3, parameter_bytes=10**6, streamable_bytes=10**6)
        for n in (1, 64)
    }
    profiles = [Profile([layers[n]] * 12, n_samples=n) for n in layers]
    # Weights of 1 MB are read and written in longer than any microbatch takes.
    disk, network, speeds = Disk(2e5, 2e5), Network(1e9), [1, 0.5]
    wire = Wire(coding=OPTIONS["coding"])
    machine = Machine(2, network=network, speeds=speeds, disk=disk)
    workload = Workload(profiles, machine, 128, wire)
    streaming = UncutPlan(2, 1, 1, "gpipe", 2, "never", streamed=(0, 1))
    cut = simulated(workload, cut_plan(workload, streaming, parts=(85, 43)))
    predicted = simulate_plan(
        workload.plan(cut),
        profiles,
        batch=128,
        coding=OPTIONS["coding"],
        machine=machine,
    )
    assert predicted.makespan == pytest.approx(cut.step.seconds)


def test_memory_is_that_of_the_largest_part():
    layer = LayerCost(1.0, 1.0, 1.0, activation_bytes=1000)
    profile = Profile([layer] * 12, n_samples=64)
    speeds = [1, 1, 0.5, 0.5]
    free = plan_for(speeds, profile)
    assert free.shares is not None
    held = simulate_plan(
        free, profile, machine=Machine(4, speeds=speeds)
    ).peak_memory.max()
    equal = simulate_plan(
        replace(free, shares=None), profile, machine=Machine(4, speeds=speeds)
    )
    assert held > equal.peak_memory.max()
    limited = plan_for(speeds, profile, memory=held - 1)
    assert limited != free
    assert (
        simulate_plan(
            limited, profile, machine=Machine(4, speeds=speeds)
        ).peak_memory.max()
        < held
    )


def test_shares_are_kept_in_a_file(tmp_path):
    plan = plan_for([1, 1, 0.5, 0.5])
    path = tmp_path / "plan.json"
    plan.save(path)
    assert Plan.load(path) == plan
    assert Plan.load(path).shares == [43, 21]
    assert "2 replicas with shares 43:21" in plan.headline
    other = replace(plan, shares=[1, 1])
    assert other != plan


@pytest.mark.parametrize(
    "shares, error, message",
    [
        ([1, 2, 3], ValueError, "are 3, but there are 2 replicas"),
        ([1, 0], ValueError, "share 1 is 0"),
        ([1, "x"], TypeError, "share 1"),
        ("12", TypeError, "shares must be a list"),
    ],
)
def test_wrong_shares_are_refused(shares, error, message):
    with pytest.raises(error, match=message):
        Plan([0, 1, 2], replicas=2, shares=shares)
