"""Plans that put on disk what memory has no room for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import (
    LayerCost,
    Machine,
    MemoryLimitError,
    Network,
    Plan,
    Profile,
    best_plan,
)
from divisible.planning.disk import Disk, segment_bytes, streamed_cost, streamed_profile
from divisible.planning.plan_simulation import simulate_plan

MB = 10**6


def profile_of(n=8, forward=1.0, activation=100 * MB, parameter=MB, streamable=True):
    """Layers whose backward takes twice their forward, for a minibatch of 64."""
    layer = LayerCost(
        forward,
        forward,
        forward,
        output_bytes=MB,
        activation_bytes=activation,
        parameter_bytes=parameter,
        optimizer_bytes=parameter,
        streamable_bytes=parameter * streamable,
    )
    return Profile([layer] * n, n_samples=64, input_bytes=MB)


@given(
    times=st.lists(st.floats(0.01, 10), min_size=3, max_size=3),
    size=st.integers(1, 10**11).map(lambda n: 4 * n),
    part=st.floats(0.01, 1),
    read=st.floats(1e3, 1e12),
    write=st.floats(1e3, 1e12),
    m=st.integers(1, 100),
    has_replicas=st.booleans(),
)
def test_a_streamed_layer_takes_as_long_or_longer_and_less_memory(
    times, size, part, read, write, m, has_replicas
):
    streamable = max(1, int(part * size))
    layer = LayerCost(
        *times,
        parameter_bytes=size,
        optimizer_bytes=2 * size,
        streamable_bytes=streamable,
    )
    disk = Disk(read, write)
    slow = streamed_cost(layer, disk, m, has_replicas=has_replicas)
    for name in ("forward", "backward_input", "backward_weight"):
        # Parts of a minibatch add up to it, but for rounding.
        assert getattr(slow, name) >= (1 - 1e-9) * getattr(layer, name)
    # At least what goes over the disk in a minibatch takes its time.
    least = disk.seconds((2 * m + m - 1) * streamable, m * streamable)
    assert m * slow.seconds >= 0.999 * least
    assert slow.parameter_bytes == size - streamable
    assert slow.n_gradients == layer.n_gradients
    assert streamed_cost(slow, disk, m) == slow
    if has_replicas:
        assert slow.seconds >= streamed_cost(layer, disk, m).seconds


def test_disks_and_segments():
    with pytest.raises(ValueError, match="write of a disk must be positive"):
        Disk(1.0, 0.0)
    with pytest.raises(TypeError, match="read of a disk"):
        Disk("fast", 1.0)
    with pytest.raises(ValueError, match="part, 10"):
        LayerCost(1.0, 1.0, 1.0, parameter_bytes=10, streamable_bytes=11)
    assert [segment_bytes(2**k) / 2**20 for k in (20, 30, 33)] == [1, 8, 32]
    profile = profile_of()
    assert streamed_profile(profile, (), None, 1) is profile


OPTIONS = {"schedules": ["1f1b", "gpipe"], "batch": 64}


def test_more_ranks_win_where_there_are_some():
    plan = best_plan(
        profile_of(),
        Machine(
            4, memory=600 * MB, network=Network(bandwidth=1e12), disk=Disk(1e9, 1e9)
        ),
        **OPTIONS,
    )
    assert plan.n_ranks == 4 and not plan.streamed
    assert set(plan.hold_in) == {"memory"} and plan.recompute == "never"


# A pipeline of four, for machines that have no room for all its microbatches.
TIGHT = {
    "microbatches": [8],
    "pipeline_ranks": [4],
    "schedules": ["gpipe"],
    "batch": 64,
}


def test_holding_on_disk_wins_where_it_is_fast():
    layers = profile_of(activation=20 * MB)
    machine = Machine(4, memory=26 * MB)
    fast = best_plan(layers, replace(machine, disk=Disk(1e12, 1e12)), **TIGHT)
    assert "disk" in fast.hold_in and fast.recompute == "never"
    slow = best_plan(layers, replace(machine, disk=Disk(1e5, 1e5)), **TIGHT)
    assert set(slow.hold_in) == {"memory"}
    assert slow.recompute != "never" or slow.recomputed
    assert fast.step_seconds < slow.step_seconds
    without = best_plan(layers, machine, **TIGHT)
    assert without.step_seconds == slow.step_seconds
    # Activations that another library holds cannot wait there.
    held = Profile(
        [*layers.layers[:7], replace(layers.layers[7], stays_in_memory=True)],
        n_samples=64,
        input_bytes=MB,
    )
    plan = best_plan(held, replace(machine, disk=Disk(1e12, 1e12)), **TIGHT)
    assert set(plan.hold_in) == {"memory"}
    # What the plan says can be predicted, if the disk is known.
    with pytest.raises(ValueError, match="disk="):
        simulate_plan(replace(fast, conditions=None), layers)
    timeline = simulate_plan(fast, layers)
    assert timeline.makespan == pytest.approx(fast.step_seconds)
    assert timeline.peak_memory.max() <= machine.memory
    assert "held on disk by the ranks" in str(fast)


def test_only_ranks_without_room_hold_on_disk():
    plan = best_plan(
        profile_of(activation=20 * MB),
        Machine(4, memory=24 * MB, disk=Disk(1e12, 1e12)),
        recompute=["never"],
        **{**TIGHT, "schedules": ["1f1b"]},
    )
    # Its first rank has four microbatches in flight; the others have fewer.
    assert plan.hold_in == ("disk", "memory", "memory", "memory")
    assert plan.cuts == [0, 2, 4, 6, 8]


def test_streaming_wins_where_weights_do_not_fit():
    heavy = profile_of(4, forward=10.0, activation=MB, parameter=200 * MB)
    machine = Machine(1, memory=1500 * MB, disk=Disk(1e9, 1e9))
    plan = best_plan(heavy, machine, **OPTIONS)
    # All four take 2.4 GB with gradients and state; segments take 16 times 11.7 MB.
    assert len(plan.streamed) == 2 and plan.n_ranks == 1
    assert "streamed" in plan.headline
    assert simulate_plan(plan, heavy).makespan == pytest.approx(plan.step_seconds)
    with pytest.raises(MemoryLimitError):
        best_plan(heavy, replace(machine, disk=None), **OPTIONS)
    with pytest.raises(MemoryLimitError):
        fixed = profile_of(4, parameter=400 * MB, streamable=False)
        best_plan(fixed, machine, **OPTIONS)
    # Of layers that differ, the one that computes longest goes.
    layers = [*heavy.layers[:3], LayerCost(**{**vars(heavy.layers[3]), "forward": 99})]
    mixed = Profile(layers, n_samples=64)
    slow = Machine(1, memory=2.2e9, disk=Disk(1e7, 1e7))
    plan = best_plan(mixed, slow, **OPTIONS)
    assert plan.streamed == (3,)


def test_plan_files_have_both(tmp_path):
    plan = Plan([0, 2, 4], 8, "1f1b", hold_in=["disk", "memory"], streamed=[3, 1])
    plan.save(tmp_path / "plan.json")
    other = Plan.load(tmp_path / "plan.json")
    assert other == plan and other.streamed == (1, 3)
    assert Plan([0, 2, 4]).hold_in == ("memory", "memory")
    with pytest.raises(ValueError, match="'memory' or 'disk' for each rank"):
        Plan([0, 2, 4], hold_in=["tape", "disk"])
    with pytest.raises(ValueError, match="for 1 rank, but a pipeline has 2"):
        Plan([0, 2, 4], hold_in=["disk"])
    with pytest.raises(TypeError, match="hold_in must be a list"):
        Plan([0, 2, 4], hold_in="disk")
    with pytest.raises(ValueError, match="positions of 4 layers"):
        Plan([0, 2, 4], streamed=[4])


def test_more_microbatches_or_a_disk():
    """A plan with a disk is never slower than one without it."""
    layers = profile_of(activation=40 * MB)
    options = {"schedules": ["1f1b"], "batch": 64, "microbatches": [4, 16, 64]}
    for memory in np.geomspace(20 * MB, 400 * MB, 4):
        machine = Machine(3, memory=float(memory))
        try:
            without = best_plan(layers, machine, **options).step_seconds
        except MemoryLimitError:
            without = np.inf
        machine = replace(machine, disk=Disk(1e9, 1e9))
        assert best_plan(layers, machine, **options).step_seconds <= without
