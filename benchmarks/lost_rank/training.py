"""The script that trains while it loses ranks; `benchmarks.lost_rank` starts it.

A start that has ranks to lose kills one of them after some minibatches. All ranks write
the moments of what they do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

#: When the script begins, after Python, MPI and the packages have started.
BEGIN = time.time()

import chainer  # noqa: E402
import numpy as np  # noqa: E402
from chainer import training  # noqa: E402
from mpi4py import MPI  # noqa: E402

from benchmarks.common.perceptron import mlp  # noqa: E402
from benchmarks.lost_rank.setting import (  # noqa: E402
    AFTER,
    BATCH,
    BEGINS,
    KILLED,
    LAYERS,
    LOST,
    MICROBATCHES,
    MINIBATCH,
    N_ITERATIONS,
    WIDTH,
)
from divisible import Plan  # noqa: E402
from pipeline import Pipeline, PipelineUpdater, memory_copies, snapshot  # noqa: E402


class Moments:
    """The moments of a rank, which are in a file that all its starts append to.

    Args:
        folder: Folder of the file.
        rank: Number of the rank.

    Attributes:
        start (int): Number of this start, from 0.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / f"moments-{rank}.jsonl"
        before = self._path.read_text() if self._path.exists() else ""
        self.start = before.count(BEGINS)

    def write(self, what: str, moment: float, iteration: int) -> None:
        """Adds a moment, in seconds of the clock, and the minibatch before it."""
        fields = {"start": self.start, "what": what, "time": moment}
        with self._path.open("a") as file:
            file.write(json.dumps({**fields, "iteration": iteration}) + "\n")


def main() -> None:
    """Trains, and loses a rank."""
    folder, comm = Path(sys.argv[1]), MPI.COMM_WORLD
    moments = Moments(folder, comm.rank)
    moments.write(BEGINS, BEGIN, 0)
    np.random.seed(0)
    model = mlp(WIDTH, LAYERS)
    cuts = Plan.uniform(len(model), comm.size).cuts
    plan = Plan(cuts, n_microbatches=MICROBATCHES)
    pipe = Pipeline(model, comm, plan=plan, timeout=60)
    optimizer = pipe.setup(chainer.optimizers.Adam())
    x = np.random.randn(10 * BATCH, WIDTH).astype(np.float32)
    t = np.random.randint(0, 10, len(x)).astype(np.int32)
    samples = chainer.datasets.TupleDataset(x, t)
    iterator = chainer.iterators.SerialIterator(samples, BATCH)
    updater = PipelineUpdater(iterator, optimizer, pipe)
    trainer = training.Trainer(updater, (N_ITERATIONS, "iteration"), folder / "out")
    trainer.extend(memory_copies(directory=folder))
    trainer.extend(snapshot(resume="auto"), trigger=(N_ITERATIONS, "iteration"))

    @training.make_extension(trigger=(1, "iteration"), priority=-200)
    def watch(trainer: Any) -> None:
        done = trainer.updater.iteration
        moments.write(MINIBATCH, time.time(), done)
        if comm.rank == LOST and done in AFTER[moments.start : moments.start + 1]:
            moments.write(KILLED, time.time(), done)
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.extend(watch)
    trainer.run()


if __name__ == "__main__":
    main()
