"""Fig. 5 of the paper: what four processes do in a step, updates included.

    OMP_NUM_THREADS=1 mpiexec -n 4 python -m benchmarks.paper_tables.figure_5

A perceptron of 32 fully connected layers trains on zeros, with a minibatch of 32
samples in 4 microbatches, as in the paper. The paper's layers have 8,192 units. Their
weights take 2 GiB on each of 4 ranks; so do the gradients of the loop, and those of the
`Pipeline`. ``--units`` sets another number.

The paper found that the first backward of a step is shorter than the later ones. Its
explanation: only the later ones add their gradients to gradients that are there. Three
ways to train take turns:

* the paper's loop (its Fig. 4) over ChainerMN, with Chainer's own arithmetic;
* the same loop, with gradients of zeros that are there before the first backward. By
  the explanation, the first backward then takes as long as the others;
* a `Pipeline` with the same order (GPipe), and with the messages, sums and kernels of
  this project.

The result has, for each way and rank, the seconds of forwards, of the first and of the
later backwards, and of updates. The picture has a timeline of the first way and one of
the last. If there are more ranks than cores, ranks compete for cores, and more ranks
work during the later backwards. The second way shows how much this lengthens them. With
``mpiexec -n 1`` no other rank works.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Callable, NamedTuple

import chainer
import numpy as np
from mpi4py import MPI

import chainer_kernels
from benchmarks.common.perceptron import cut, mlp, step_seconds
from benchmarks.common.results import (
    ROOT,
    Result,
    alternate,
    command,
    machine,
    new_file,
)
from benchmarks.paper_tables.first_backward import HEADER, later_to_first, table
from benchmarks.paper_tables.recorded_loop import RecordedLoop
from chainer_kernels.memory import keep_freed
from divisible import Divisible
from divisible.schedules.plot import describe, plot_timelines
from divisible.schedules.timeline import Timeline
from pipeline import Pipeline

PICTURE = ROOT / "docs" / "paper_tables" / "fig05.png"
#: Seconds between two polls of a rank that waits for the next step.
PAUSE = 0.002
#: Steps of each way that are not counted: weights are made, shapes agreed on.
FIRST_STEPS = 2
LOOP, KEPT, OURS = "the paper's loop", "with gradients before it", "Pipeline"


class Way(NamedTuple):
    """A way to train.

    Attributes:
        prepare: Function that is called before each step.
        step: Function that trains on the minibatch and updates the parameters.
        timeline: Function that returns the timeline of the last step.
        has_kernels: Whether the kernels of this project compute.
    """

    prepare: Callable[[], None]
    step: Callable[[], None]
    timeline: Callable[[], Timeline]
    has_kernels: bool


def ways(comm: MPI.Comm, arguments: argparse.Namespace) -> dict[str, Way]:
    """Makes the ways to train, by name."""
    x = np.zeros((arguments.batch, arguments.units), np.float32)
    t = np.zeros(arguments.batch, np.int32)
    n_microbatches = arguments.microbatches
    # All ways train one stage, because memory may not hold several.
    stage = cut(mlp(arguments.units, arguments.layers), comm.size, comm.rank)
    optimizer = chainer.optimizers.SGD().setup(stage)
    loop = RecordedLoop(comm, stage, n_microbatches)
    pipe = Pipeline(stage, comm, n_microbatches=n_microbatches, schedule="gpipe")

    def step_of_loop() -> None:
        loop.step(x, t, optimizer.update)

    def step_of_pipeline() -> None:
        pipe.step(x, t)
        with pipe.recorded_update():
            optimizer.update()

    return {
        LOOP: Way(stage.cleargrads, step_of_loop, loop.timeline, False),
        KEPT: Way(lambda: _fill(stage), step_of_loop, loop.timeline, False),
        OURS: Way(lambda: None, step_of_pipeline, pipe.timeline, True),
    }


def _fill(stage: Divisible) -> None:
    """Makes every gradient of a stage zero."""
    for param in stage.params():
        if param.grad is None:
            param.grad = np.empty_like(param.array)
        param.grad.fill(0)


def measure(
    comm: MPI.Comm, made: dict[str, Way], rounds: int
) -> dict[str, list[Timeline]]:
    """Trains in every way in turn, and returns the timelines of each way."""
    timelines: dict[str, list[Timeline]] = {name: [] for name in made}

    def seconds_of(name: str) -> float:
        way = made[name]
        way.prepare()
        with nullcontext() if way.has_kernels else chainer_kernels.disabled():
            seconds = step_seconds(comm, way.step, PAUSE)
        timelines[name].append(way.timeline())
        return seconds

    alternate({name: name for name in made}, FIRST_STEPS + rounds, seconds_of)
    return {name: each[FIRST_STEPS:] for name, each in timelines.items()}


def write(
    result: Result, timelines: dict[str, list[Timeline]], network: str, picture: Path
) -> None:
    """Writes the tables, the finding and the picture.

    Args:
        result: File of the tables and the finding.
        timelines: Timelines of each way, by its name.
        network: Number and size of the layers, for the picture.
        picture: File of the picture.
    """
    for name, each in timelines.items():
        step = statistics.median(timeline.makespan for timeline in each)
        result.write("", f"{name}: a step of {1e3 * step:.0f} ms; in ms", HEADER)
        result.write(*table(each))
    found = [f"{name} {later_to_first(each):.2f}" for name, each in timelines.items()]
    result.write("", f"later backwards / the first one: {'; '.join(found)}")
    shown = {name: _typical(timelines[name]) for name in (LOOP, OURS)}
    titled = {
        f"{name}, {network}: {describe(each)}": each for name, each in shown.items()
    }
    plot_timelines(titled, picture)
    print(f"drawn: {os.path.relpath(picture)}", flush=True)


def _typical(timelines: Sequence[Timeline]) -> Timeline:
    """Returns the timeline with the median makespan."""
    return sorted(timelines, key=lambda each: each.makespan)[len(timelines) // 2]


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper_tables.figure_5",
        description=__doc__.splitlines()[0],
    )
    add = parser.add_argument
    add("--units", type=int, default=2048, help="of each layer; paper: 8192")
    add("--layers", type=int, default=32, help="fully connected ones")
    add("--batch", type=int, default=32, help="samples of a minibatch")
    add("--microbatches", type=int, default=4, help="of a minibatch; 2 or more")
    add("--rounds", type=int, default=10, help="steps of each way")
    add("--output", type=new_file, help="file of the tables; the picture is beside it")
    arguments = parser.parse_args()
    if arguments.microbatches < 2:
        parser.error("--microbatches must be 2 or more: one backward has no later ones")
    return arguments


def main() -> None:
    """Measures, and writes the result and the picture."""
    arguments, comm = parse(), MPI.COMM_WORLD
    keep_freed()
    result = Result("paper_figure_5", arguments.output, silent=comm.rank > 0)
    result.write(
        command(f"OMP_NUM_THREADS=1 mpiexec -n {comm.size}"),
        machine("numpy", "chainer", "mpi4py"),
        f"{arguments.layers} layers of {arguments.units} units, {arguments.batch}"
        f" samples in {arguments.microbatches} microbatches on {comm.size} ranks;"
        f" medians of {arguments.rounds} steps of each way",
    )
    if comm.size > os.cpu_count():
        result.write(f"{comm.size} ranks compete for {os.cpu_count()} cores")
    timelines = measure(comm, ways(comm, arguments), arguments.rounds)
    if comm.rank == 0:
        output = arguments.output
        picture = output.with_suffix(".png") if output else PICTURE
        network = f"{arguments.layers} x {arguments.units}"
        write(result, timelines, network, picture)
    result.save()


if __name__ == "__main__":
    main()
