"""How much faster two ranks train a 32-layer perceptron than one.

    OMP_NUM_THREADS=1 mpiexec -n 2 python benchmarks/speedup.py

The baseline is one step of plain Chainer with the undivided model on one rank, on one
thread: forward, softmax cross entropy, backward; the other rank sleeps. Against it run,
in turn within one run, the paper's loop (its Fig. 4, over ChainerMN) and
pipeline.Pipeline with its schedules at several numbers of microbatches. No optimizer
runs. The speed-up of a round is the baseline's time over the variant's, of that round.

Beside it stands what pipeline.simulate predicts for the same schedule from the times of
F, B, I and W in the measured timelines, with messages that take no time; and how much
slower the step's matrix products are by themselves at the size of a microbatch, which
no schedule can win back.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any, Callable

import chainermn
from _common import Result, alternate, cpu_seconds, machine, ratios
from _mlp import (
    cut,
    cut_like_v,
    measured_costs,
    minibatch,
    mlp,
    paper_loop,
    step_seconds,
    undivided_step,
)
from accumulation import Products
from mpi4py import MPI

from pipeline import Pipeline, abort_on_error
from pipeline.list_scheduling import list_schedule
from pipeline.schedule import Schedule
from pipeline.simulator import simulate
from pipeline.timeline import Timeline

#: What issue 3 of this project asks for, at two ranks.
TARGETS = {"1f1b": 1.55, "zero bubble": 1.70}
PAUSE = 0.002


class Variant:
    """A pipeline with a schedule, and the timelines of its steps."""

    def __init__(
        self, stages: Any, schedule: str | Schedule, n_microbatches: int, data: tuple
    ) -> None:
        self._data = data
        self._pipe = Pipeline(stages, MPI.COMM_WORLD, n_microbatches, schedule)
        self.schedule = self._pipe.schedule
        self.timelines: list[Timeline] = []

    def __call__(self) -> None:
        """Takes one step."""
        self._pipe.step(*self._data)

    def keep_timeline(self) -> Timeline:
        """Keeps the timeline of the last step, and returns it."""
        self.timelines.append(self._pipe.timeline())
        return self.timelines[-1]

    def costs(self) -> Any:
        """Returns the mean times of the stages."""
        return measured_costs(self.timelines, self.schedule.n_stages)


def variants(arguments: argparse.Namespace, data: tuple) -> dict[str, Callable]:
    """Makes what is compared, each warmed up."""
    comm = MPI.COMM_WORLD
    model = mlp(arguments.width, arguments.layers)
    straight, v = cut(model, 2, comm.rank), cut_like_v(model, 2, comm.rank)
    five = arguments.paper_microbatches

    # A model of its own: Chainer's gradients come and go, the pipelines' stay.
    if comm.rank == 0:
        serial = undivided_step(mlp(arguments.width, arguments.layers), *data)
    else:
        serial = _nothing
    made: dict[str, Callable] = {"undivided": serial}

    loop, loop_comm = paper_loop(), chainermn.create_communicator("naive")
    loop_stage = cut(mlp(arguments.width, arguments.layers), 2, comm.rank)

    def fig4() -> None:
        loop_stage.cleargrads()
        loop.train_minibatch(loop_comm, loop_stage, *data, len(data[0]), size)

    size = -(-len(data[0]) // five)
    made[f"Fig. 4 over ChainerMN, {five}"] = fig4
    for name in ("gpipe", "1f1b"):
        made[f"{name}, {five}"] = Variant(straight, name, five, data)
    for n in arguments.microbatches:
        for name, stages in (("zb_h1", straight), ("zb_v", v)):
            variant = made[f"{name}, {n}"] = Variant(stages, name, n, data)
            # The first step agrees on shapes and touches the gradients' memory.
            variant()
            variant()
            variant.keep_timeline()
            costs = variant.costs()
            variant.timelines.clear()
            schedule = list_schedule(costs, n, stage_ranks=variant.schedule.stage_ranks)
            shape = "list" if name == "zb_h1" else "list in V"
            made[f"{shape}, {n}"] = Variant(stages, schedule, n, data)
    for variant in made.values():
        step_seconds(comm, variant, PAUSE)
    return made


def _nothing() -> None:
    pass


def gemm_factors(arguments: argparse.Namespace, rounds: int) -> dict[int, list[float]]:
    """Returns, for each number of microbatches, how much slower its products are."""
    factors = {}
    for n in sorted({arguments.paper_microbatches, *arguments.microbatches}):
        products = Products(arguments.width, arguments.layers, arguments.batch, n)
        seconds = alternate(
            {"whole": products.step, "cut": products.step_in_microbatches},
            rounds,
            cpu_seconds,
        )
        factors[n] = [b / a for a, b in zip(seconds["whole"], seconds["cut"])]
    return factors


def main() -> None:
    """Runs the comparison and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1200)
    parser.add_argument("--paper-microbatches", type=int, default=5)
    parser.add_argument("--microbatches", type=int, nargs="+", default=[5, 8, 10])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        parser.error(f"start 2 ranks, not {comm.size}: mpiexec -n 2 python ...")
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("set OMP_NUM_THREADS=1: one thread per rank")
    abort_on_error()
    result = Result("speedup", arguments.output, silent=comm.rank != 0)
    result.write(
        "OMP_NUM_THREADS=1 mpiexec -n 2 python " + " ".join(sys.argv),
        machine("numpy", "scipy", "chainer", "mpi4py", "mpich"),
        f"{arguments.layers} layers of width {arguments.width}, batch "
        f"{arguments.batch}; {arguments.rounds} rounds; speed-up: median (min..max)",
        "",
    )

    made = variants(arguments, minibatch(arguments.width, arguments.batch))

    def seconds_of(variant: Callable) -> float:
        seconds = step_seconds(comm, variant, PAUSE)
        if isinstance(variant, Variant):
            variant.keep_timeline()
        return seconds

    seconds = alternate(made, arguments.rounds, seconds_of)
    base = seconds["undivided"]
    result.write(
        f"{'step, microbatches':<28} {'ms':>7}  {'speed-up':<19} {'simulated':>9}"
        f" {'bubble':>7}"
    )
    best: dict[str, tuple[float, str]] = {}
    for name, variant in made.items():
        predicted = bubble = ""
        speedup = statistics.median(a / b for a, b in zip(base, seconds[name]))
        if isinstance(variant, Variant):
            timeline = simulate(variant.schedule, variant.costs())
            predicted = f"{statistics.median(base) / timeline.makespan:.2f}"
            bubble = (
                f"{statistics.fmean(t.bubble.mean() for t in variant.timelines):.1%}"
            )
            kind = name.split(",")[0]
            group = kind if kind in ("gpipe", "1f1b") else "zero bubble"
            best[group] = max(best.get(group, (0.0, "")), (speedup, name))
        result.write(
            f"{name:<28} {1e3 * statistics.median(seconds[name]):7.0f} "
            f"{ratios(base, seconds[name]):<20} {predicted:>9} {bubble:>7}"
        )
    result.write()
    for group, target in TARGETS.items():
        speedup, name = best[group]
        word = "met" if speedup >= target else "MISSED"
        result.write(
            f"{group} at its best ({name}): {speedup:.2f}, target {target:.2f}: {word}"
        )
    result.write("the paper's loop at 2 processes, in the paper: 1.34", "")

    # One rank after the other: this rank alone, the other asleep.
    factors: dict[int, list[float]] = {}
    step_seconds(
        comm,
        (lambda: factors.update(gemm_factors(arguments, 3)))
        if not comm.rank
        else _nothing,
        PAUSE,
    )
    result.write("the step's matrix products alone, in microbatches over undivided:")
    for n, values in factors.items():
        result.write(
            f"{n:3d} microbatches: {statistics.median(values):.2f}"
            f" ({min(values):.2f}..{max(values):.2f})"
        )
    result.save()


if __name__ == "__main__":
    main()
