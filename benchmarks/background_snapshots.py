"""The cost of saving a snapshot: at once, and in the background.

    OMP_NUM_THREADS=1 mpiexec -n 2 python -m benchmarks.background_snapshots

The paper's fully connected layers are trained with Adam in three ways that take turns:

* some minibatches, and no snapshot;
* the same with a snapshot at once before the first of them;
* the same with one in the background, and the wait for it if it is not there by then.

Besides the time of all there is that of the call that saves, in which nothing trains;
that of a step while the files are written, and of one after that. What the threads
compute, checksums above all, takes the cores from the training where it leaves none
idle; what they wait for the disk does not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import chainer
from mpi4py import MPI

from benchmarks.common.perceptron import cut, minibatch, mlp
from benchmarks.common.results import (
    Result,
    alternate,
    command,
    machine,
    quiet_barrier,
    ratios,
)
from pipeline import Pipeline, save_snapshot, wait_for_snapshot


class Seconds(NamedTuple):
    """The times of one round.

    Attributes:
        whole: Seconds of the whole round.
        saving: Seconds of the call that saves.
        first: Seconds of the first step after it.
        last: Seconds of the last step.
    """

    whole: float
    saving: float
    first: float
    last: float


def main() -> None:
    """Runs the comparison that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=600)
    parser.add_argument("--microbatches", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="in each round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where to save")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("set OMP_NUM_THREADS=1: the ranks share the cores")
    comm = MPI.COMM_WORLD
    result = Result("background_snapshots", args.output, silent=comm.rank > 0)
    stage = cut(mlp(args.width, args.layers), comm.size, comm.rank)
    optimizer = chainer.optimizers.Adam().setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=args.microbatches)
    x, t = minibatch(args.width, args.batch)

    def step() -> None:
        pipe.step(x, t)
        optimizer.update()

    def measured(background: bool | None) -> Seconds:
        """Saves, unless that is None, and trains."""
        quiet_barrier(comm)
        times = [time.perf_counter()]
        if background is not None:
            save_snapshot(path, pipe, optimizer, background=background)
        for _ in range(args.steps):
            times.append(time.perf_counter())
            step()
        times.append(time.perf_counter())
        wait_for_snapshot(pipe)
        end = time.perf_counter()
        here = Seconds(
            end - times[0],
            times[1] - times[0],
            times[2] - times[1],
            times[-1] - times[-2],
        )
        return Seconds(*map(max, zip(*comm.allgather(here))))

    step()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = os.path.join(comm.bcast(folder), "snapshot")
        save_snapshot(path, pipe, optimizer)
        n_bytes = comm.bcast(sum(file.stat().st_size for file in Path(path).iterdir()))
        result.write(
            command(f"OMP_NUM_THREADS=1 mpiexec -n {comm.size}"),
            machine("numpy", "chainer", "mpi4py"),
            f"{args.layers} layers of width {args.width} with Adam, a snapshot of"
            f" {n_bytes / 1e6:.0f} MB; {args.batch} samples in {args.microbatches}"
            f" microbatches on {comm.size} ranks; {args.rounds} rounds of {args.steps}"
            f" minibatches",
            "",
        )
        variants = {"without": None, "at once": False, "in the background": True}
        found = alternate(variants, args.rounds, measured)
        comm.Barrier()
    if comm.rank == 0:
        write(result, found)
    result.save()


def write(result: Result, found: dict[str, Sequence[Seconds]]) -> None:
    """Writes medians and ranges, and ratios to the rounds without a snapshot."""
    heads = ["whole round", "call that saves", "first step", "last step"]
    result.write("".join([f"{'ms':18}", *(f"{head:>21}" for head in heads)]))
    for name, rounds in found.items():
        columns = [_milliseconds(values) for values in zip(*rounds)]
        result.write("".join([f"{name:18}", *(f"{each:>21}" for each in columns)]))
    result.write("", "a round with a snapshot to one without:")
    wholes = {name: [each.whole for each in rounds] for name, rounds in found.items()}
    for name in ("at once", "in the background"):
        result.write(f"{name:18} {ratios(wholes[name], wholes['without'])}")


def _milliseconds(seconds: Sequence[float]) -> str:
    low, high = 1e3 * min(seconds), 1e3 * max(seconds)
    return f"{1e3 * statistics.median(seconds):.0f} ({low:.0f}..{high:.0f})"


if __name__ == "__main__":
    main()
