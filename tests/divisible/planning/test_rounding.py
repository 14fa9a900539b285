"""Plans whose activations wait as bfloat16."""

from dataclasses import replace

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import (
    Disk,
    Divisible,
    LayerCost,
    Machine,
    MemoryLimitError,
    Plan,
    Profile,
    best_plan,
    profile,
)
from divisible.planning.coding import CodingRate
from divisible.planning.plan_simulation import simulate_plan
from pipeline import Pipeline
from pipeline.stages.held_elsewhere import HeldElsewhere

MB = 10**6
BOTH = ("float32", "bfloat16")
FAST, SLOW = CodingRate(1e12, 1e12), CodingRate(1e6, 1e6)


def layers_of(n=8, coding=FAST):
    """Layers whose activations are rounded, all but a tenth."""
    layer = LayerCost(
        1.0,
        1.0,
        1.0,
        output_bytes=MB,
        activation_bytes=20 * MB,
        parameter_bytes=MB,
        optimizer_bytes=MB,
        activation_saved_bytes=9 * MB,
        output_saved_bytes=MB // 2,
    )
    costs = Profile([layer] * n, n_samples=64, input_bytes=MB)
    return replace(costs, coding={"bf16": coding})


# A pipeline of four, for machines that have no room for all its microbatches.
TIGHT = {
    "microbatches": [8],
    "pipeline_ranks": [4],
    "schedules": ["gpipe"],
    "batch": 64,
}
MACHINE = Machine(4, memory=38 * MB)


def test_rounding_wins_over_recomputation_where_it_is_allowed():
    without = best_plan(layers_of(), MACHINE, **TIGHT)
    assert (without.hold_dtype, len(without.recomputed)) == ("float32", 4)
    plan = best_plan(layers_of(), MACHINE, hold_dtypes=BOTH, **TIGHT)
    found = plan.hold_dtype, plan.recompute, plan.recomputed
    assert found == ("bfloat16", "never", ())
    assert plan.step_seconds < without.step_seconds
    assert "held in bfloat16" in str(plan) and plan.n_microbatches == 8
    others = [other.plan for other in plan.alternatives if other.plan is not None]
    assert any(other.hold_dtype == "float32" for other in others)
    timeline = simulate_plan(plan, layers_of())
    assert timeline.makespan == pytest.approx(plan.step_seconds)
    assert timeline.peak_memory.max() <= MACHINE.memory
    exact = simulate_plan(replace(plan, hold_dtype="float32"), layers_of())
    assert exact.peak_memory.max() > MACHINE.memory
    # The time of rounding counts.
    slow = layers_of(coding=SLOW)
    assert best_plan(slow, MACHINE, hold_dtypes=BOTH, **TIGHT).hold_dtype == "float32"
    # A stage saves two bytes of each element of an eighth of the minibatch.
    each = (2 * 9 + 0.5) / 8 / 2
    seconds = simulate_plan(plan, slow).makespan - timeline.makespan
    assert seconds == pytest.approx((8 + 3) * 2 * each, rel=0.05)


def test_it_wins_nothing_where_there_is_room():
    machine = Machine(4, memory=1000 * MB)
    plan = best_plan(layers_of(), machine, hold_dtypes=BOTH, **TIGHT)
    assert plan.hold_dtype == "float32"
    with pytest.raises(MemoryLimitError):
        best_plan(layers_of(), Machine(4, memory=10 * MB), hold_dtypes=BOTH, **TIGHT)
    with pytest.raises(ValueError, match="hold_dtypes must be some of float32, bfl"):
        best_plan(layers_of(), machine, hold_dtypes=["float16"], **TIGHT)


def test_schedules_with_two_weight_versions_round_nothing():
    options = {**TIGHT, "schedules": ["pipedream_2bw", "gpipe"]}
    machine = Machine(4, memory=1000 * MB)
    assert best_plan(layers_of(), machine, **options).schedule == "pipedream_2bw"
    rounded = best_plan(layers_of(), machine, hold_dtypes=["bfloat16"], **options)
    assert rounded.schedule == "gpipe"


def test_fewer_bytes_travel_to_a_disk():
    machine = Machine(4, memory=24 * MB, disk=Disk(1e9, 1e9))
    options = {**TIGHT, "recompute": ["never"]}
    plan = best_plan(layers_of(), machine, hold_dtypes=["bfloat16"], **options)
    exact = best_plan(layers_of(), machine, **options)
    assert "disk" in plan.hold_in and "disk" in exact.hold_in
    slow = replace(machine, disk=Disk(1e6, 1e6))
    times = [
        simulate_plan(each, layers_of(), machine=slow).makespan
        for each in (plan, replace(plan, hold_dtype="float32"))
    ]
    # 21 MB of input and activations are 11.5 then.
    assert times[0] / times[1] == pytest.approx(11.5 / 21, rel=0.1)


def test_plan_files_have_it(tmp_path):
    plan = Plan([0, 2, 4], 8, "1f1b", hold_dtype="bfloat16")
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan != Plan([0, 2, 4], 8, "1f1b")
    with pytest.raises(ValueError, match="hold_dtype must be 'float32' or 'bfloat16'"):
        Plan([0, 2, 4], hold_dtype="bf16")


def test_a_profile_counts_what_a_run_saves(monkeypatch):
    np.random.seed(0)
    model = Divisible(
        *(L.Linear(256, 512), F.relu, lambda h: F.dropout(h, 0.3), L.Linear(512, 64)),
        *(lambda h: (h, F.tanh(h)), lambda a, b: F.max(a * b, axis=1, keepdims=True)),
        L.Linear(1, 3),
    )
    x, t = np.ones((1024, 256), np.float32), np.zeros(1024, np.int32)
    costs = profile(model, x[:256], t[:256], F.softmax_cross_entropy, repeat=1)
    saved = sum(each.activation_saved_bytes for each in costs.layers)
    assert costs.layers[0].output_saved_bytes == 256 * 512 * 2
    assert costs.layers[6].output_saved_bytes == 0
    sizes = []
    after = HeldElsewhere.after

    def measured(self, *arguments):
        before = self._store.n_bytes
        after(self, *arguments)
        sizes.append(self._store.n_bytes - before)

    monkeypatch.setattr(HeldElsewhere, "after", measured)
    with Pipeline(
        *(model.divide(), MPI.COMM_SELF),
        **dict(n_microbatches=4, schedule="gpipe", hold_dtype="bfloat16"),
    ) as pipe:
        pipe.step(x, t)
    # What is saved is as much as what is left.
    assert max(sizes) == saved
