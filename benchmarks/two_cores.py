"""Steps on two cores by the plan that best_plan chooses, against one core.

    OMP_NUM_THREADS=1 mpiexec -n 2 python -m benchmarks.two_cores

Rank 0 profiles the layers at several sizes of microbatch, while the other rank
computes too, because two cores at work share a cache and a clock. From the profiles
:func:`divisible.best_plan` chooses the cut, the number of microbatches, the schedule
and the groups. Steps of this plan, of 1F1B with equal layers in 4 microbatches, and of
the undivided model in plain Chainer on one core take turns. No optimizer runs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chainer
import numpy as np
from mpi4py import MPI

from benchmarks.accumulation import Workload, workloads
from benchmarks.common import quick
from benchmarks.common.perceptron import step_seconds, undivided_step
from benchmarks.common.results import Result, alternate, command, machine, ratios
from benchmarks.common.two_ranks import two_ranks
from divisible import Divisible, Machine, Plan, best_plan, profile
from pipeline import Pipeline

MODELS = ("vgg16", "perceptron")
#: The sizes of microbatch at which layers are profiled, as parts of the minibatch.
PROFILED = (20, 10, 5, 2, 1)
PAUSE = 0.002
UNDIVIDED = "undivided, one core"


def chosen_plan(comm: MPI.Comm, model: Divisible, x: Any, t: Any) -> Plan:
    """Returns the plan for both ranks, from profiles that both make at once."""
    profiles = [
        profile(model, x[: len(x) // part], t[: len(x) // part]) for part in PROFILED
    ]
    plan = best_plan(profiles, Machine(comm.size), batch=len(x), pipeline_ranks=[2])
    return comm.bcast(plan)


def measure(comm: MPI.Comm, result: Result, workload: Workload, rounds: int) -> None:
    """Measures a model, and writes its part of the result."""
    np.random.seed(0)
    x, t = workload.batch()
    model = workload.build()
    plans = {
        "as best_plan chooses": chosen_plan(comm, model, x, t),
        "equal layers, 1F1B": Plan(Plan.uniform(len(model), 2).cuts, 4, "1f1b"),
    }
    steps: dict[str, Callable[[], Any]] = {UNDIVIDED: lambda: None}
    if comm.rank == 0:
        steps[UNDIVIDED] = undivided_step(model.divide(None, None), x, t)
    for name, plan in plans.items():
        pipe = Pipeline(model.divide(None, None), comm, plan=plan, accfun=None)
        steps[name] = lambda pipe=pipe: pipe.step(x, t)
    for _ in range(2):
        for step in steps.values():
            step_seconds(comm, step, PAUSE)
    names = {name: name for name in steps}
    seconds = alternate(
        names, rounds, lambda name: step_seconds(comm, steps[name], PAUSE)
    )
    if comm.rank:
        return
    result.write(workload.title)
    for name, values in seconds.items():
        result.write(
            f"  {name:22}{1e3 * statistics.median(values):7.0f} ms"
            f"  {ratios(values, seconds[UNDIVIDED])}"
        )
    result.write(*(f"  {name}: {plan.headline}" for name, plan in plans.items()), "")


def main() -> None:
    """Runs the comparison that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = quick.parse(parser, "two_cores", {}, text="small sizes")
    comm = two_ranks(parser)
    chainer.global_config.dtype = np.float32
    result = Result("two_cores", arguments.output)
    if comm.rank == 0:
        result.write(
            command("OMP_NUM_THREADS=1 mpiexec -n 2"),
            machine("numpy", "chainer", "mpich"),
            f"{arguments.rounds} rounds; median (min..max) of ratios",
            "",
        )
    for name in arguments.models:
        measure(comm, result, workloads(arguments.quick)[name], arguments.rounds)
    if comm.rank == 0:
        result.save()


if __name__ == "__main__":
    main()
