"""How much faster two ranks train a 32-layer perceptron than one.

    OMP_NUM_THREADS=1 mpiexec -n 2 python -m benchmarks.speedup

The baseline is one step of plain Chainer with the undivided model on one rank, on one
thread: forward, softmax cross entropy, backward; the other rank sleeps. Against it run,
in turn within one run, the paper's loop (its Fig. 4, over ChainerMN) and
pipeline.Pipeline with its schedules at several numbers of microbatches. No optimizer
runs. The speed-up of a round is the baseline's time over the variant's, of that round.

The result has the prediction of divisible.simulate for the same schedule from the times
of F, B, I and W in the measured timelines, with messages that take no time. Two further
lines show a loss that no schedule can win back. The step's matrix products are slower
by themselves at the size of a microbatch, and with both cores at work, which share a
cache and a clock. The other line is the speed-up if a step were nothing but these
products.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any, Callable

import chainermn
from mpi4py import MPI

from benchmarks.common.perceptron import (
    cut,
    cut_like_v,
    measured_costs,
    minibatch,
    mlp,
    paper_loop,
    step_seconds,
    undivided_step,
)
from benchmarks.common.products import Products
from benchmarks.common.results import Result, alternate, command, machine, ratios
from benchmarks.common.two_ranks import two_ranks
from divisible.schedules import one_f_one_b, zero_bubble_h1
from divisible.schedules.costs import Costs
from divisible.schedules.list_scheduling import list_schedule
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import simulate
from divisible.schedules.timeline import Timeline
from pipeline import Pipeline

#: Targets of issue 3 of this project, at two ranks.
TARGETS = {"1f1b": 1.55, "zero bubble": 1.70}
PAUSE = 0.002


class Variant:
    """A pipeline with a schedule, and the timelines of its steps."""

    def __init__(
        self, stages: Any, schedule: str | Schedule, n_microbatches: int, data: tuple
    ) -> None:
        self._data = data
        self._pipe = Pipeline(
            stages, MPI.COMM_WORLD, n_microbatches=n_microbatches, schedule=schedule
        )
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
    """Makes the variants to compare, each warmed up."""
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


def product_times(
    arguments: argparse.Namespace, n_microbatches: int, rounds: int
) -> dict[str, list[float]]:
    """Times the step's matrix products alone: undivided, in microbatches, on 2 ranks.

    Returns:
        Seconds in each round of ``'undivided'`` and ``'cut'``, on one rank while the
        other one sleeps, and of ``'both'``: in microbatches, on both ranks at once.
    """
    comm = MPI.COMM_WORLD
    products = Products(
        arguments.width, arguments.layers, arguments.batch, n_microbatches
    )
    in_microbatches = products.step_in_microbatches
    ways = {
        "undivided": _nothing if comm.rank else products.step,
        "cut": _nothing if comm.rank else in_microbatches,
        "both": in_microbatches,
    }
    products.step()
    return alternate(ways, rounds, lambda way: step_seconds(comm, way, PAUSE))


def products_of(n_linear: int, is_first: bool, is_last: bool) -> tuple[int, int, int]:
    """Counts a stage's products of full width in F, I and W of a microbatch."""
    # The last layer's are small, and the input of the first needs no gradient.
    n = n_linear - is_last
    return n, n - is_first, n


def limit(schedule: Schedule, n_layers: int, factor: float) -> float:
    """Returns the speed-up if nothing but the matrix products took time.

    Args:
        schedule: Schedule of two stages with half of the layers each.
        n_layers (int): Number of layers of the model.
        factor (float): Factor by which the products take longer in microbatches, on
            both ranks at once.
    """
    half = n_layers // 2
    stages = [products_of(half, True, False), products_of(n_layers - half, False, True)]
    undivided = sum(products_of(n_layers, True, True)) * schedule.n_microbatches
    costs = Costs(*([float(n) for n in kind] for kind in zip(*stages)))
    return undivided / simulate(schedule, costs).makespan / factor


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
    comm = two_ranks(parser)
    result = Result("speedup", arguments.output, silent=comm.rank != 0)
    result.write(
        command("OMP_NUM_THREADS=1 mpiexec -n 2"),
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

    seconds = alternate(made, arguments.rounds, seconds_of, result.progress)
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

    result.write(
        "the step's matrix products alone, against undivided on one rank, and the"
        " speed-up if",
        "a step were nothing else:",
        f"{'microbatches':<14} {'one rank':<19} {'two ranks at once':<19}"
        f" {'gpipe, 1f1b':>11} {'zb_h1':>6}",
    )
    for n in sorted({arguments.paper_microbatches, *arguments.microbatches}):
        times = product_times(arguments, n, rounds=5)
        factor = statistics.median(
            both / whole for both, whole in zip(times["both"], times["undivided"])
        )
        limits = [
            limit(make(2, n), arguments.layers, factor)
            for make in (one_f_one_b, zero_bubble_h1)
        ]
        result.write(
            f"{n:<13}{ratios(times['cut'], times['undivided']):<20}"
            f"{ratios(times['both'], times['undivided']):<20}"
            f" {limits[0]:>11.2f} {limits[1]:>6.2f}"
        )
    result.save()


if __name__ == "__main__":
    main()
