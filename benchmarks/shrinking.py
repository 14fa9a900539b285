"""The step of a pipeline before channels are removed, after that, and with new cuts.

    OMP_NUM_THREADS=1 mpiexec -n 2 python -m benchmarks.shrinking

VGG16 on two ranks, cut by its profile. Half of the channels of the convolutions on the
first rank are pruned and removed between two minibatches, so that the first rank waits
for the second. Then layers move by a profile of the remaining model. Three pipelines in
these states take turns. Beside them is the step on one rank without a pipeline, half of
which is the best that two ranks can reach.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chainer
import chainer.functions as F
import numpy as np
from mpi4py import MPI

from benchmarks.common.perceptron import step_seconds
from benchmarks.common.results import Result, alternate, command, machine, ratios
from benchmarks.common.two_ranks import two_ranks
from divisible import Divisible, deferred_init, partition, profile
from examples.train.models.vgg16 import VGG16
from model_compression import Compress, CompressionPlan, Prune
from pipeline import Pipeline, rebalance

DENSE, SHRUNK, MOVED = "all channels", "half of the first rank's gone", "and cut anew"
BATCH, N_MICROBATCHES = 128, 8


def build() -> Divisible:
    """Makes VGG16 for small images, no layer of which has its weights yet."""
    with deferred_init(seed=0):
        return VGG16(dropout=0.0)


def cuts_of(model: Divisible, comm: MPI.Comm, x: Any, t: Any) -> list[int]:
    """Returns where a model is cut best, by the first rank's profile of it."""
    cuts = None
    if comm.rank == 0:
        costs = profile(model.divide(), x, t, F.softmax_cross_entropy)
        cuts = partition(costs, n_stages=comm.size).cuts
    return comm.bcast(cuts)


class Run:
    """A pipeline that trains.

    Args:
        comm: Communicator of the ranks.
        cuts: Positions of the cuts.
        data: Minibatch that is used repeatedly.
    """

    def __init__(self, comm: MPI.Comm, cuts: list[int], data: tuple) -> None:
        self._data = data
        self.stage = build().divide(*cuts[comm.rank : comm.rank + 2])
        self.pipe = Pipeline(
            self.stage, comm, n_microbatches=N_MICROBATCHES, schedule="1f1b"
        )
        optimizer = chainer.optimizers.MomentumSGD(0.001)
        self.optimizer = optimizer.setup(self.stage)

    def step(self) -> None:
        """Trains once."""
        self.pipe.step(*self._data)
        self.optimizer.update()

    def shrink(self, layers: list[str]) -> Compress:
        """Takes half of the channels of some layers away."""
        plan = CompressionPlan(
            [Prune("l2", layers=layers, to=0.5, granularity="channel")]
        )
        compress = Compress(plan, self.optimizer, pipeline=self.pipe)
        compress.advance(1, 0.0)
        compress.shrink()
        return compress


def undivided(model: Divisible, data: tuple) -> Callable[[], None]:
    """Returns a step of a model on one rank."""
    x, t = data
    optimizer = chainer.optimizers.MomentumSGD(0.001).setup(model)

    def step() -> None:
        loss = F.softmax_cross_entropy(model(x), t)
        model.cleargrads()
        loss.backward()
        optimizer.update()

    return step


def main() -> None:
    """Runs all and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    comm = two_ranks(parser)
    random = np.random.RandomState(0)
    x = random.standard_normal((BATCH, 3, 32, 32)).astype(np.float32)
    t = random.randint(0, 10, BATCH).astype(np.int32)
    part = slice(BATCH // N_MICROBATCHES)

    cuts = cuts_of(build(), comm, x[part], t[part])
    convolutions = [
        f"/{i}"
        for i, layer in enumerate(build())
        if isinstance(layer, chainer.links.Convolution2D) and i < cuts[1]
    ]
    runs = {name: Run(comm, cuts, (x, t)) for name in (DENSE, SHRUNK, MOVED)}
    for run in runs.values():
        run.step()
    runs[SHRUNK].shrink(convolutions)
    compress = runs[MOVED].shrink(convolutions)
    small = compress.prepare(build())
    new_cuts = cuts_of(small, comm, x[part], t[part])
    moved = runs[MOVED]
    rebalance(moved.pipe, moved.optimizer, new_cuts, lambda: compress.prepare(build()))
    steps: dict[str, Callable[[], None]] = {k: run.step for k, run in runs.items()}
    alone = {
        "all channels, one rank": build().divide(),
        "half of these gone, one rank": compress.prepare(build()).divide(),
    }
    for name, model in alone.items():
        step = undivided(model, (x, t))
        # The other rank waits.
        steps[name] = step if comm.rank == 0 else lambda: None
    for step in steps.values():
        step()
    seconds = alternate(steps, arguments.rounds, lambda s: step_seconds(comm, s, 0.002))

    result = Result("shrinking", arguments.output)
    if comm.rank == 0:
        result.write(
            command("OMP_NUM_THREADS=1 mpiexec -n 2"),
            machine("numpy", "numba", "chainer"),
            f"VGG16, 32 x 32, {BATCH} samples, {N_MICROBATCHES} microbatches, 1f1b;"
            f" cut at {cuts[1]}, anew at {new_cuts[1]}; {arguments.rounds} rounds",
            "",
            f"{'':<32} ms a step   of the first",
        )
        for name, values in seconds.items():
            result.write(
                f"{name:<32} {1e3 * statistics.median(values):9.0f}"
                f"   {ratios(values, seconds[DENSE])}"
            )
        result.save()


if __name__ == "__main__":
    main()
