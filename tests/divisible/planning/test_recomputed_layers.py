"""Layers that run forward again: their costs, and plans that choose them."""

from dataclasses import replace

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

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
from divisible.planning.plan_simulation import predicted_step, simulate_plan
from divisible.planning.recomputed_layers import recomputed_profile
from divisible.schedules.recomputation import RECOMPUTATIONS

MB = 10**6
SLOW = LayerCost(10.0, 10.0, 10.0, activation_bytes=MB)
LARGE = LayerCost(0.01, 0.01, 0.01, activation_bytes=100 * MB)
#: Only the layers whose activations are large fit, if they run again one by one.
UNLIKE = Profile([*[SLOW] * 4, *[LARGE] * 4], n_samples=1)


def test_cheap_layers_of_large_activations_run_again(tmp_path):
    machine = Machine(1, memory=150 * MB)
    with pytest.raises(MemoryLimitError):
        best_plan(UNLIKE, machine, recompute=RECOMPUTATIONS)
    plan = best_plan(UNLIKE, machine)
    alone = 4 * 30 + 4 * 0.03
    # The last layer frees its activations before another one runs again.
    assert plan.step_seconds == pytest.approx(alone + 3 * 0.01)
    assert plan.recomputed == ((4, 5), (5, 6), (6, 7))
    assert plan.recompute == "never" and "layers 4, 5, 6 recomputed" in str(plan)
    line = "stage 0 recomputes layers 4, 5, 6: 286.1 MiB less, for 30 ms of each"
    assert line in str(plan)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan and str(loaded) == str(plan)
    timeline = simulate_plan(loaded, UNLIKE)
    assert timeline.peak_memory.tolist() == [104 * MB]
    assert timeline.makespan == pytest.approx(plan.step_seconds)


def test_no_more_layers_than_memory_needs():
    assert best_plan(UNLIKE, Machine(1)).recomputed == ()
    for memory, n_again in ((404 * MB, 0), (404 * MB - 1, 1), (304 * MB - 1, 2)):
        plan = best_plan(UNLIKE, Machine(1, memory=memory))
        assert len(plan.recomputed) == n_again
        assert all(start >= 4 and end == start + 1 for start, end in plan.recomputed)
    # While the last layer runs again, its arrays are there beside all others.
    last = replace(plan, recomputed=[(7, 8)])
    assert simulate_plan(last, UNLIKE).peak_memory.tolist() == [404 * MB]
    asked = best_plan(UNLIKE, Machine(1), recompute=["layers"])
    assert asked.recomputed == () and asked.recompute == "never"


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "zb_v"])
def test_layers_are_chosen_for_each_stage(schedule):
    """Stages of a pipeline hold unequally many microbatches."""
    # Outputs are small, so a run of neighbours frees nearly all.
    layer = LayerCost(
        0.1, 1.0, 1.0, output_bytes=1000, activation_bytes=MB, parameter_bytes=1000
    )
    layers = Profile([layer] * 8, n_samples=1)
    options = {"microbatches": [8], "batch": 8, "schedules": [schedule]}
    options["pipeline_ranks"] = [2]
    free = best_plan(layers, Machine(2), **options)
    least = simulate_plan(free, layers).peak_memory.max()
    tight = Machine(2, memory=0.7 * least)
    plan = best_plan(layers, tight, **options, recompute=["layers"])
    assert plan.recomputed and free.step_seconds < plan.step_seconds
    timeline = simulate_plan(plan, layers)
    assert timeline.peak_memory.max() <= 0.7 * least
    seconds = predicted_step(timeline, plan, layers)
    assert seconds == pytest.approx(plan.step_seconds)
    every = best_plan(layers, tight, **options)
    assert every.step_seconds <= plan.step_seconds


def test_with_a_disk_there_is_more_to_choose_from():
    options = {"microbatches": [1], "batch": 1}
    machine = Machine(1, memory=150 * MB)
    without = best_plan(UNLIKE, machine, **options)
    for disk in Disk(1e12, 1e12), Disk(1e6, 1e6):
        plan = best_plan(UNLIKE, replace(machine, disk=disk), **options)
        assert plan.step_seconds <= without.step_seconds
    # Weights that do not fit, beside activations that do not.
    heavy = replace(LARGE, parameter_bytes=100 * MB, streamable_bytes=100 * MB)
    both = Profile([*[SLOW] * 4, heavy, *[LARGE] * 3], n_samples=1)
    machine = Machine(1, memory=320 * MB, disk=Disk(1e9, 1e9))
    plan = best_plan(both, machine, **options)
    assert plan.streamed == (4,) or plan.recomputed
    assert simulate_plan(plan, both).peak_memory.max() <= 320 * MB


def model(marked=()):
    np.random.seed(0)
    made = Divisible()
    layers = [L.Linear(8, 64), F.tanh, L.Linear(64, 64), F.relu, L.Linear(64, 4)]
    for i, layer in enumerate(layers):
        made.append(layer, recompute=i in marked)
    return made


@pytest.mark.parametrize("start, end", [(0, 2), (1, 2), (1, 4), (2, 5), (0, 5)])
def test_costs_are_those_that_marked_layers_have(start, end):
    x, t = np.ones((16, 8), np.float32), np.zeros(16, np.int32)
    plain = profile(model(), x, t, F.softmax_cross_entropy, repeat=1)
    marked = profile(model(range(start, end)), x, t, F.softmax_cross_entropy, repeat=1)
    changed = recomputed_profile(plain, [(start, end)], [0, 5])
    held, expected = (
        [each.activation_bytes for each in one.layers] for one in (changed, marked)
    )
    # The output of the last one is held by the layers behind in any case.
    last = end - 1
    assert held[:last] == expected[:last] and held[last + 1 :] == expected[last + 1 :]
    assert held[last] >= expected[last]
    workspace = (
        [each.workspace_bytes for each in one.layers[start:end]]
        for one in (changed, marked)
    )
    for mine, its in zip(*workspace):
        assert mine == pytest.approx(its, rel=0.35, abs=2048)


@pytest.mark.parametrize(
    "runs, message",
    [
        ([(2, 9)], "expected its first position"),
        ([(1, 3), (2, 4)], "layer 2 in two runs"),
        ([(3, 3)], "expected its first position"),
    ],
)
def test_runs_that_cannot_be(runs, message):
    with pytest.raises(ValueError, match=message):
        Plan([0, 4, 8], recomputed=runs)
