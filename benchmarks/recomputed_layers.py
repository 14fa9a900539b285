"""Peaks and steps of plans whose layers are recomputed, against their predictions.

    OMP_NUM_THREADS=1 mpiexec -n 2 python -m benchmarks.recomputed_layers

U-Net and ResNet50 are profiled on rank 0, which both ranks then use. On one rank and on
two, :func:`divisible.best_plan` chooses the layers to recompute, for a part of the
memory that a plan without recomputation needs. Each plan runs, and two things are
compared with :func:`divisible.simulate_plan`:

* the peak of live arrays of each rank in two steps, by tracemalloc, which NumPy reports
  to. Parameters are left out of both, because they are there before.
* the seconds of a step, in turn with the plan without recomputation. As both ranks use
  the profile of one, which had the machine for itself, the ratio of the two plans is
  compared, measured and predicted.

Stages take microbatches one by one, so that groups of them change nothing here.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from benchmarks.common import quick
from benchmarks.common.perceptron import step_seconds
from benchmarks.common.results import (
    Result,
    alternate,
    command,
    machine,
    quiet_barrier,
    ratios,
)
from divisible import (
    Divisible,
    Machine,
    MemoryLimitError,
    Plan,
    Profile,
    best_plan,
    profile,
)
from divisible.planning.plan_simulation import simulate_plan
from examples.train.models.resnet50 import ResNet50
from examples.unet.model import UNet
from pipeline import Pipeline, abort_on_error

MIB = 2**20
#: Parts of the memory of a plan without recomputation, above its parameters.
PARTS = (0.75, 0.5)
#: The largest part by which a peak may be wrong, and the largest ratio of seconds.
PEAK, SECONDS = 0.1, 1.03
#: Seconds between two looks of a rank that waits for the next step.
PAUSE = 0.002
PLAIN = "no recomputation"


class Task(NamedTuple):
    """A model and its minibatch.

    Attributes:
        make: Makes the model, the same on every rank.
        x: Inputs of a minibatch.
        t: Targets.
        n_microbatches: Number of microbatches.
    """

    make: Callable[[], Divisible]
    x: np.ndarray
    t: np.ndarray
    n_microbatches: int


def tasks(quick: bool) -> dict[str, Task]:
    """Returns the models by name; ``quick`` for small ones."""
    random = np.random.RandomState(0)
    side, n = (32, 8) if quick else (64, 32)
    images = random.rand(n, 1, side, side).astype(np.float32)
    pixels = random.randint(0, 2, (n, side, side)).astype(np.int32)
    photos = random.rand(n, 3, 32, 32).astype(np.float32)
    classes = random.randint(0, 10, n).astype(np.int32)
    return {
        "U-Net": Task(lambda: UNet(depth=2 if quick else 3), images, pixels, n // 4),
        "ResNet50": Task(lambda: ResNet50(image_size=32), photos, classes, n // 4),
    }


def profiles_of(comm: MPI.Comm, task: Task) -> list[Profile]:
    """Measures the layers on rank 0, at three sizes around that of a microbatch."""
    found = None
    if comm.rank == 0:
        model, n = task.make(), len(task.x) // task.n_microbatches
        found = [
            profile(model, task.x[:k], task.t[:k])
            for k in (max(1, n // 2), n, min(2 * n, len(task.x)))
        ]
    quiet_barrier(comm)
    return comm.bcast(found)


def plans_of(profiles: list[Profile], task: Task, n_ranks: int) -> dict[str, Plan]:
    """Returns the plan without recomputation, and those for less memory, by name."""

    def plan(way: str, memory: list[float] | None) -> Plan:
        found = best_plan(
            profiles,
            Machine(n_ranks, memory=memory),
            batch=len(task.x),
            microbatches=[task.n_microbatches],
            schedules=["1f1b"],
            recompute=[way],
            pipeline_ranks=[n_ranks],
            weight_groups=[1],
        )
        return replace(found, stage_groups=())

    plans = {PLAIN: plan("never", None)}
    whole = simulate_plan(plans[PLAIN], profiles, batch=len(task.x))
    needed = np.array(whole.peak_memory)
    fixed = parameter_bytes(profiles, plans[PLAIN])
    for part in PARTS:
        limits = fixed + part * (needed - fixed)
        # Less than any choice of layers needs.
        with contextlib.suppress(MemoryLimitError):
            plans[f"{part:.0%} of the memory"] = plan("layers", limits.tolist())
    return plans


def predicted(plan: Plan, profiles: list[Profile], task: Task) -> Any:
    """Returns the simulated timeline of a step.

    The machine has more memory than the plan may use, so kernels keep all weights that
    they have prepared.
    """
    roomy = Machine(plan.n_stages)
    return simulate_plan(plan, profiles, batch=len(task.x), machine=roomy)


def parameter_bytes(profiles: list[Profile], plan: Plan) -> np.ndarray:
    """Returns the bytes of the parameters of each stage."""
    sizes = profiles[0].column("parameter_bytes")
    return np.array([sum(sizes[a:b]) for a, b in zip(plan.cuts, plan.cuts[1:])])


def peak(pipe_of: Callable[[], Pipeline], task: Task) -> float:
    """Returns the peak of live arrays in two steps of a new pipeline, in bytes.

    Parameters, which the pipeline's layers have before, do not count.
    """
    # Loads and compiles what a step needs, which lasts.
    with pipe_of() as pipe:
        pipe.step(task.x, task.t)
        for stage in pipe.stages.values():
            stage.cleargrads()
    del pipe, stage
    gc.collect()
    tracemalloc.start()
    pipe = pipe_of()
    for _ in range(2):
        pipe.step(task.x, task.t)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    pipe.close()
    return found


def measure(
    comm: MPI.Comm, result: Result, profiles: list[Profile], task: Task, rounds: int
) -> tuple[float, float]:
    """Measures the plans of a model on the ranks, and writes a line for each.

    Returns:
        The largest error of a peak, and the largest ratio of measured to predicted
        seconds, both relative to the plan without recomputation.
    """
    plans = comm.bcast(plans_of(profiles, task, comm.size) if not comm.rank else None)
    model = task.make()
    timelines = {name: predicted(plan, profiles, task) for name, plan in plans.items()}

    def pipeline(plan: Plan) -> Pipeline:
        return Pipeline(model.divide(None, None), comm, plan=plan, accfun=None)

    peaks, pipes = {}, {}
    for name, plan in plans.items():
        found = peak(lambda plan=plan: pipeline(plan), task)
        peaks[name] = np.array(comm.allgather(found))
        # The next plan makes its own gradients.
        model.cleargrads()
    for name, plan in plans.items():
        pipes[name] = pipeline(plan)
        pipes[name].step(task.x, task.t)
    names = {name: name for name in plans}
    seconds = alternate(
        names,
        rounds,
        lambda name: step_seconds(
            comm, lambda: pipes[name].step(task.x, task.t), PAUSE
        ),
    )
    for pipe in pipes.values():
        pipe.close()
    worst_peak = worst_ratio = 0.0
    for name, plan in plans.items():
        wanted = timelines[name].peak_memory - parameter_bytes(profiles, plan)
        error = abs(wanted / peaks[name] - 1).max()
        expected = timelines[name].makespan / timelines[PLAIN].makespan
        took = statistics.median(a / b for a, b in zip(seconds[name], seconds[PLAIN]))
        worst_peak = max(worst_peak, error)
        worst_ratio = max(worst_ratio, took / expected)
        both = [" ".join(f"{v / MIB:7.1f}" for v in c) for c in (wanted, peaks[name])]
        result.write(
            f"  {name:18} MiB {both[0]} predicted {both[1]} measured, {error:5.1%} off;"
            f" step {ratios(seconds[name], seconds[PLAIN])} of {PLAIN},"
            f" {expected:.2f} predicted; recomputed: {list(plan.recomputed)}"
        )
    return worst_peak, worst_ratio


def main() -> None:
    """Runs the comparison and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", help="of U-Net and ResNet50")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    arguments = quick.parse(parser, "recomputed_layers", {}, text="small sizes")
    comm = MPI.COMM_WORLD
    abort_on_error()
    result = Result("recomputed_layers", arguments.output, silent=comm.rank != 0)
    result.write(
        command(f"OMP_NUM_THREADS=1 mpiexec -n {comm.size}"),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"1F1B; peaks of each rank without parameters; {arguments.rounds} rounds;"
        " median (min..max)",
    )
    worst = [0.0, 0.0]
    for name, task in tasks(arguments.quick).items():
        if arguments.models and name not in arguments.models:
            continue
        profiles = profiles_of(comm, task)
        for n_ranks in sorted({1, comm.size}):
            result.write(f"{name}, {n_ranks} rank{'s' if n_ranks > 1 else ''}")
            group = comm.Split(int(comm.rank < n_ranks), comm.rank)
            if comm.rank < n_ranks:
                found = measure(group, result, profiles, task, arguments.rounds)
                worst = [max(pair) for pair in zip(worst, found)]
            quiet_barrier(comm)
            group.Free()
    for what, value, target in (
        ("largest error of a peak", worst[0], PEAK),
        ("largest ratio of a step to its prediction", worst[1], SECONDS),
    ):
        verdict = "met" if value <= target else "MISSED"
        result.write(f"{what} {value:.3f}, wanted {target:g}: {verdict}")
    result.save()


if __name__ == "__main__":
    main()
