"""The ways of the paper's tables on real hosts, with any MPI and without root.

    OMP_NUM_THREADS=1 mpiexec -n 4 python -m benchmarks.paper_tables.on_ranks

``--model``, ``--image``, ``--microbatches`` and more options choose the points. Each
rank is a host of the tables. These ways take turns, each with forward, backward and
update::

    undivided            rank 0 has the whole model, while the others sleep
    the paper's loop     its Fig. 4, with equally many layers on each rank
    1F1B                 with the same layers
    1F1B, ZB-H1          with the cut that `best_plan` chooses

For the choice, rank 0 profiles the layers, and all ranks measure links and speeds.

A sample is a line of JSON, as in ``benchmarks/paper_tables/data/samples.jsonl``. It is
written at once, so a command that was stopped goes on where it was. With ``--kernels
off on`` both take turns, round by round. At the end the command prints the speed-ups
over the undivided model. ``--quick`` has one round of one step, in 20 microbatches.

``--device`` may name a GPU, such as ``@cupy:0``. No test has run there, because no
machine with a GPU was at hand. The paper's loop is left out on a GPU: its communicator
sends arrays of host memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import chainer
from mpi4py import MPI

from benchmarks.common import quick
from benchmarks.common.hosts import PAUSE
from benchmarks.common.results import ROOT, machine, quiet_barrier
from benchmarks.paper_tables.arithmetic import (
    OFF,
    ON,
    library,
    on_this_machine,
    put_in_force,
)
from benchmarks.paper_tables.measuring import Entry, missing_rounds
from benchmarks.paper_tables.models import build, equal_cuts, minibatch, our_cuts
from benchmarks.paper_tables.points import (
    BATCH,
    EQUAL,
    FIG4,
    OURS,
    Point,
    Scale,
    with_serial,
)
from benchmarks.paper_tables.rows import rows
from benchmarks.paper_tables.samples import Sample, append, read
from benchmarks.paper_tables.steps import TIMEOUT, Steps
from benchmarks.paper_tables.timer import Timer
from benchmarks.paper_tables.work import describe
from chainer_kernels.memory import keep_freed
from divisible import Machine, Profile, profile
from pipeline import abort_on_error
from pipeline.start.found_machine import find_machine

OUTPUT = ROOT / "build" / "paper_tables" / "on_ranks.jsonl"
#: Names of the models, and what points call them.
MODELS = {"vgg16": "vgg16", "resnet50": "resnet50", "perceptron": "mlp"}
#: Cut and schedule of each way, besides the undivided model.
WAYS = ((EQUAL, FIG4), (EQUAL, "1f1b"), (OURS, "1f1b"), (OURS, "zb_h1"))
#: Rate of the links, which nothing limits.
REAL = "real"
HOST = "@numpy"
#: Options of a quick run, in which a sample has one timed step.
QUICK = {"microbatches": [20], "rounds": 1}


def points_of(arguments: argparse.Namespace, n_ranks: int) -> list[Point]:
    """Returns the points that the command line asks for."""
    found = []
    for kernels in arguments.kernels:
        scale = Scale(
            *(arguments.width, arguments.image, arguments.batch),
            arithmetic=on_this_machine(kernels),
            update=True,
        )
        found += [
            scale.of(
                *(MODELS[arguments.model], n_ranks, m),
                rate=REAL,
                cut=cut,
                schedule=schedule,
            )
            for m in arguments.microbatches
            for cut, schedule in WAYS
            if arguments.device == HOST or schedule != FIG4
        ]
    return with_serial(found)


def in_rounds(
    measured: Mapping[Point, list[Sample]], points: Sequence[Point], rounds: int
) -> list[Entry]:
    """Returns points and rounds that were not measured, one round after the other.

    Kernels off and on take turns, so that a run that is stopped early has both.

    Args:
        measured: Samples of each point.
        points: Points to measure.
        rounds: Rounds to measure of each.
    """
    missing = missing_rounds(measured, points, rounds)
    return sorted(missing, key=lambda entry: entry[1])


class OnRanks:
    """Measures points on ranks of real hosts.

    Args:
        comm: The ranks.
        file: File of the samples; read and written on rank 0.
        device: Name of each rank's device.
        quick: Whether a sample has one timed step.
    """

    def __init__(self, comm: MPI.Comm, file: Path, device: str, quick: bool) -> None:
        self._comm, self._file = comm, file
        self._device = chainer.get_device(device)
        self._timer = Timer(comm, quick)
        self._where, self._load = machine_of(comm)
        measured = read(file) if comm.rank == 0 else {}
        # All rounds of a point are cut alike, whatever is chosen now.
        self._cuts = {point: each[-1].cuts for point, each in measured.items()}
        self._machine: Machine | None = None
        self._profiles: dict[tuple, Profile] = {}

    def measure(self, todo: Sequence[Entry]) -> None:
        """Measures points and rounds, which are equal on all ranks, in turn."""
        for _, entries in itertools.groupby(todo, lambda entry: entry[0].group):
            entries = list(entries)
            put_in_force(entries[0][0].kernels)
            for point, _ in entries:
                self._choose(point)
            with Steps(self._comm, device=self._device.name) as steps:
                for point, number in entries:
                    self._sample(steps, point, number)

    def _sample(self, steps: Steps, point: Point, number: int) -> None:
        is_new, step = point not in steps, steps.get(point, self._cuts[point])
        timed = self._timer.typical(step, is_new)
        steps.check(point)
        if self._comm.rank > 0:
            return
        sample = Sample(
            point,
            number,
            timed.seconds,
            self._cuts[point],
            machine=self._where,
            load=self._load,
            date=time.strftime("%Y-%m-%d"),
            pages=timed.pages,
            stolen=round(timed.stolen, 4),
            share=1.0,
            library=library(point.arithmetic),
        )
        append(self._file, sample)
        print(describe(sample), flush=True)

    def _choose(self, point: Point) -> None:
        """Ensures on all ranks that the cuts of a point are known."""
        if self._comm.bcast(point in self._cuts):
            self._cuts[point] = self._comm.bcast(self._cuts.get(point))
            return
        if self._machine is None and point.cut == OURS:
            # Memory limits no plan, as on emulated hosts.
            machine = find_machine(self._comm, TIMEOUT)
            self._machine = dataclasses.replace(machine, memory=None)
        if self._comm.rank == 0:
            self._cuts[point] = (
                our_cuts(point, [self._profile(point)], self._machine)
                if point.cut == OURS
                else equal_cuts(point)
            )
        # Without using a core that rank 0 may need.
        quiet_barrier(self._comm, PAUSE)
        self._cuts[point] = self._comm.bcast(self._cuts.get(point))

    def _profile(self, point: Point) -> Profile:
        """Returns a profile of the layers at a point's size of microbatch."""
        key = (point.arithmetic, point.samples)
        if key not in self._profiles:
            model = build(point).to_device(self._device)
            x, t = self._device.send(minibatch(point, point.samples))
            self._profiles[key] = profile(model, x, t)
        return self._profiles[key]


def machine_of(comm: MPI.Comm) -> tuple[str, float]:
    """Describes the hosts of all ranks, and returns their largest load average.

    Args:
        comm: The ranks.
    """
    where, load = machine("numpy", "chainer", "mpi4py").rsplit(", ", 1)
    everyone = comm.allgather((MPI.Get_processor_name(), where, load))
    names, kinds, loads = map(dict.fromkeys, zip(*everyone))
    first_line = MPI.Get_library_version().split("\n", 1)[0]
    library = " ".join(first_line.strip("\0").split())
    hosts = f"{len(names)} host{'s' * (len(names) != 1)}"
    text = f"{comm.size} ranks on {hosts}: {'; '.join(kinds)}, {library}"
    return text, max(float(each.split()[-1]) for each in loads)


def speedups(file: Path, points: Sequence[Point]) -> list[str]:
    """Returns a line for each measured point, with its speed-up.

    Args:
        file: File of the samples.
        points: Points to show. The number of microbatches is that of the step, which
            the paper's loop may cut into fewer than it is asked for.
    """
    lines = ["kernels  m  cut           schedule  rounds  step s  speed-up"]
    for point, row in rows(read(file), points).items():
        lines.append(
            f"{point.kernels:7} {point.turns:2}  {point.cut:13}"
            f" {point.schedule:9} {len(row.seconds):6} {row.step:7.3f}"
            f" {row.speedup:9.2f}"
        )
    return lines


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper_tables.on_ranks",
        description=__doc__.splitlines()[0],
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default="vgg16")
    add("--image", type=int, default=32, help="pixels on a side of an image")
    add("--width", type=int, default=2048, help="units of the perceptron's layers")
    add("--batch", type=int, help="samples; the paper's by default: 84, 90, 1200")
    add(
        "--microbatches",
        type=int,
        nargs="+",
        default=[4, 12, 20],
        metavar="M",
        help="numbers of microbatches",
    )
    add("--rounds", type=int, default=3, help="samples of each point")
    add(
        "--kernels",
        nargs="+",
        choices=(OFF, ON),
        default=[ON],
        help="with chainer_kernels in force, or with Chainer's own arithmetic, or both",
    )
    add("--device", default=HOST, help="device of each rank, such as @cupy:0")
    add("--output", type=Path, default=OUTPUT, help="file of the samples")
    arguments = quick.parse(
        *(parser, "paper_tables_on_ranks", QUICK, argv),
        text="one timed step a sample",
        suffix=".jsonl",
    )
    batch = arguments.batch or BATCH[MODELS[arguments.model]]
    if not 0 < min(arguments.microbatches) <= max(arguments.microbatches) <= batch:
        parser.error(f"--microbatches must be from 1 to the {batch} samples of a batch")
    return arguments


def main() -> None:
    """Measures what is missing, and prints the speed-ups."""
    arguments, comm = parse(), MPI.COMM_WORLD
    abort_on_error()
    keep_freed()
    file = arguments.output
    points, todo = None, None
    if comm.rank == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        points = points_of(arguments, comm.size)
        todo = in_rounds(read(file), points, arguments.rounds)
        n_samples = len(points) * arguments.rounds
        print(f"{len(todo)} of {n_samples} samples to measure, for", file, flush=True)
    todo = comm.bcast(todo)
    with chainer.using_device(arguments.device):
        OnRanks(comm, file, arguments.device, arguments.quick).measure(todo)
    if comm.rank == 0:
        print("\n".join(speedups(file, points)))


if __name__ == "__main__":
    main()
