"""The plan that is chosen against all others, measured.

    mpiexec -n 3 python benchmarks/plan_choice.py

A perceptron of 12 unequal layers on 3 ranks, with 1 to 16 microbatches: every cut with
every number of microbatches makes steps (55 x 16 plans). `Plan.best` chooses one from
the layers' profile and the measured link, without having seen a step. Then the chosen
plan, the best found and the equal-layers cut take turns. The chosen one should be at
most 5 % slower than the best.

Each rank needs a core of its own. With fewer, emulate hosts:

    emulated_cluster up --cpus 0.6 --count 3 --rate 1gbit
    emulated_cluster run -n 3 -- .venv/bin/python benchmarks/plan_choice.py
    emulated_cluster down
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from _common import Result, alternate, machine, quiet_barrier, ratios
from _mlp import step_seconds
from chainer.initializers import HeNormal
from mpi4py import MPI

from divisible import Divisible, Network, Plan, Profile, profile
from pipeline import Pipeline, abort_on_error
from pipeline.planning.prediction import predict

#: Inputs and outputs of the layers: some are 16 times as much work as others.
WIDTHS = (256, 512, 768, 1024, 512, 256, 256, 768, 1024, 1024, 512, 256, 10)
TARGET = 1.05
#: Seconds between two looks of a rank that waits for the next step.
PAUSE = 0.002


class Layer(chainer.Chain):
    """A fully connected layer with its activation, to be cut as one."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        with self.init_scope():
            self.linear = L.Linear(n_in, n_out, initialW=HeNormal())

    def forward(self, x: Any) -> Any:
        """Passes ``x`` through the layer."""
        return F.relu(self.linear(x))


def make_model() -> Divisible:
    """Makes the same model on every rank."""
    np.random.seed(0)
    return Divisible(*[Layer(*pair) for pair in zip(WIDTHS, WIDTHS[1:])])


def measure_network(comm: MPI.Comm) -> Network:
    """Measures the link between ranks 0 and 1: latency and bandwidth."""
    seconds = []
    for n_bytes in (8, 2**22):
        buffer = np.zeros(n_bytes, np.uint8)
        times = []
        for _ in range(12):
            quiet_barrier(comm, PAUSE)
            start = time.perf_counter()
            if comm.rank == 0:
                comm.Send(buffer, 1)
                comm.Recv(buffer, 1)
            elif comm.rank == 1:
                comm.Recv(buffer, 0)
                comm.Send(buffer, 0)
            times.append((time.perf_counter() - start) / 2)
        seconds.append(comm.bcast(min(times)))
    latency, large = seconds
    return Network(2**22 / max(large - latency, 1e-9), latency)


def measure_profiles(
    comm: MPI.Comm, model: Divisible, x: Any, t: Any, sizes: list[int]
) -> list[Profile]:
    """Profiles on rank 0, while the others sleep."""
    found = None
    if comm.rank == 0:
        found = [profile(model, x[:n], t[:n], repeat=9) for n in sizes]
    quiet_barrier(comm, 0.05)
    return comm.bcast(found)


class Runner:
    """Makes steps of one plan after another."""

    def __init__(self, comm: MPI.Comm, model: Divisible, x: Any, t: Any) -> None:
        self.comm = comm
        self.model = model
        self.data = x, t

    def seconds(self, plan: Plan, steps: int) -> float:
        """Returns the least seconds of some steps; one comes before."""
        stage = self.model.divide(*plan.range(self.comm.rank))
        with Pipeline(
            stage, self.comm, plan.n_microbatches, plan.schedule, accfun=None
        ) as pipe:
            pipe.step(*self.data)
            return min(
                step_seconds(self.comm, lambda: pipe.step(*self.data), PAUSE)
                for _ in range(steps)
            )


def all_plans(n_layers: int, n_stages: int, numbers: list[int]) -> list[Plan]:
    """Returns every cut with every number of microbatches."""
    return [
        Plan([0, *inner, n_layers], n_microbatches=m, schedule="1f1b")
        for inner in itertools.combinations(range(1, n_layers), n_stages - 1)
        for m in numbers
    ]


def main() -> None:
    """Runs the search and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--most", type=int, default=16, help="microbatches")
    parser.add_argument("--steps", type=int, default=3, help="of each plan")
    parser.add_argument(
        "--rounds", type=int, default=15, help="of the final comparison"
    )
    parser.add_argument("--finalists", type=int, default=5)
    parser.add_argument("--sample", type=int, help="try so many plans only, at random")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    abort_on_error()
    comm = MPI.COMM_WORLD
    result = Result("plan_choice", arguments.output, silent=comm.rank > 0)

    model = make_model()
    random = np.random.RandomState(0)
    x = random.standard_normal((arguments.batch, WIDTHS[0])).astype(np.float32)
    t = random.randint(0, WIDTHS[-1], arguments.batch).astype(np.int32)
    numbers = list(range(1, arguments.most + 1))
    sizes = [arguments.batch // n for n in (arguments.most, 4, 1)]
    network = measure_network(comm)
    profiles = measure_profiles(comm, model, x, t, sizes)
    chosen = Plan.best(
        profiles,
        comm.size,
        network=network,
        pipeline_ranks=[comm.size],
        microbatches=numbers,
        schedules=["1f1b"],
        checkpoints=["never"],
    )
    result.write(
        f"mpiexec -n {comm.size} python {' '.join(sys.argv)}",
        machine("numpy", "scipy", "chainer", "mpi4py", "mpich"),
        f"{len(model)} layers on {comm.size} ranks, batch {arguments.batch}; link"
        f" {network.bandwidth / 1e6:.0f} MB/s, {network.latency * 1e6:.0f} us",
        f"chosen: {chosen.headline}",
        "",
    )

    runner = Runner(comm, model, x, t)
    plans = all_plans(len(model), comm.size, numbers)
    if arguments.sample:
        plans = [plans[i] for i in random.permutation(len(plans))[: arguments.sample]]
    measured = [runner.seconds(plan, arguments.steps) for plan in plans]
    predicted = [
        predict(plan, profiles, batch=arguments.batch, network=network).makespan
        for plan in plans
    ]
    errors = np.abs(np.array(predicted) / measured - 1)
    order = np.argsort(measured)
    result.write(
        f"{len(plans)} plans measured, from {min(measured):.4f} to"
        f" {max(measured):.4f} s a step",
        f"error of the prediction: median {np.median(errors):.1%},"
        f" 90 % below {np.quantile(errors, 0.9):.1%}, worst {errors.max():.1%}",
        "",
    )

    # The best of many measurements is partly luck, so the best few run again.
    uniform = min(
        (i for i in range(len(plans)) if plans[i].cuts == _uniform(model, comm.size)),
        key=measured.__getitem__,
        default=None,
    )
    finalists = {"chosen": chosen}
    for n, i in enumerate(order[: arguments.finalists], 1):
        finalists[f"found {n}"] = plans[i]
    if uniform is not None:
        finalists["equal layers"] = plans[uniform]
    seconds = alternate(
        finalists, arguments.rounds, lambda plan: runner.seconds(plan, 1)
    )
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    best = min(medians, key=medians.__getitem__)
    result.write(f"{'':12} {'step s':>7} {'predicted':>9}  slower than the best found")
    for name, plan in finalists.items():
        timeline = predict(plan, profiles, batch=arguments.batch, network=network)
        result.write(
            f"{name:12} {medians[name]:7.4f} {timeline.makespan:9.4f} "
            f" {ratios(seconds[name], seconds[best])}  {plan.cuts},"
            f" {plan.n_microbatches} microbatches"
        )
    slower = medians["chosen"] / medians[best]
    word = "met" if slower <= TARGET else "MISSED"
    result.write("", f"chosen / best {slower:.3f}, target {TARGET:g}: {word}")
    result.save()


def _uniform(model: Divisible, n_stages: int) -> list[int]:
    return Plan.uniform(len(model), n_stages).cuts


if __name__ == "__main__":
    main()
