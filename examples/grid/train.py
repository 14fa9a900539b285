"""Trains replicas of a pipeline on scikit-learn's handwritten digits.

    mpiexec -n 4 python examples/grid/train.py              2 replicas of 2 stages
    mpiexec -n 4 python examples/grid/train.py --stages 4   1 replica of 4 stages
    mpiexec -n 4 python examples/grid/train.py --stages 1   4 replicas of the model
    mpiexec -n 4 python examples/grid/train.py --plan plan.json    what a plan says

Each replica has its part of every minibatch, and each stage the same layers in all
replicas, between which gradients travel. Losses are the same on any grid, up to
rounding: also with dropout, whose masks go by the microbatch among those of all
replicas, if --microbatches is a multiple of the replicas. A run that was stopped, by
SIGTERM to any rank, goes on with --resume auto, on the same grid or another one.
"""

from __future__ import annotations

import argparse

import chainer
import numpy as np
from chainer.datasets import TupleDataset, split_dataset_random
from chainer.iterators import SerialIterator
from chainer.training import Trainer, extensions
from model import DigitNet
from mpi4py import MPI
from sklearn.datasets import load_digits

from data_parallel import Grid, ReplicaIterator, create_multi_node_optimizer
from divisible import Plan, deferred_init, schedules
from divisible.communication.wire import WIRE
from divisible.placement import PLACEMENTS
from pipeline import (
    Pipeline,
    PipelineEvaluator,
    PipelineUpdater,
    StopOnSignal,
    abort_on_error,
    snapshot,
)

comm = MPI.COMM_WORLD
N_TRAIN = 1440


def main() -> None:
    """Trains, and tests after every epoch."""
    # From here on, an error on one rank ends all ranks.
    abort_on_error()
    args = parse_arguments()
    # All ranks make the same model, of which each will have its own layers only.
    np.random.seed(args.seed)
    with deferred_init(args.seed):
        model = DigitNet(args.width)
    grid, plan = make_grid(args, len(model))
    plan.check(model, comm.size)
    say(f"replicas: {grid.n_replicas}, stages: {plan.n_stages}, {grid.placement}")
    args.batchsize = args.batchsize or plan.batch or 60
    if plan.conditions is not None:
        say(f"{args.plan} is for {plan.conditions}")
    say(f"{plan.n_layers} layers cut at {plan.cuts}, {plan.schedule} schedule")

    stage = model.divide(*plan.range(grid.pipeline.rank))
    del model
    pipe = Pipeline(
        stage,
        grid,
        plan.n_microbatches,
        plan.schedule,
        checkpoint=plan.recompute,
        hold_in=plan.hold_in[grid.pipeline.rank],
        seed=args.seed,
    )
    # Ranks with the same stage follow the mean of their gradients.
    optimizer = create_multi_node_optimizer(
        chainer.optimizers.MomentumSGD(0.05),
        grid.data,
        pipeline=pipe,
        wire_dtype=plan.wire_dtype or args.wire_dtype,
    ).setup(stage)

    train, test = read_digits()
    batches = SerialIterator(train, args.batchsize)
    tests = SerialIterator(test, args.batchsize, repeat=False, shuffle=False)
    batches, tests = (ReplicaIterator(it, grid, args.shares) for it in (batches, tests))
    updater = PipelineUpdater(batches, optimizer, pipe)
    trainer = Trainer(updater, (args.epoch, "epoch"), args.out)
    trainer.extend(PipelineEvaluator(tests, pipe))
    trainer.extend(extensions.LogReport())
    columns = ["epoch", "main/loss", "validation/main/loss"]
    columns += ["validation/main/accuracy", "elapsed_time"]
    trainer.extend(extensions.PrintReport(columns))
    trainer.extend(snapshot(n_retains=2, resume=args.resume), trigger=(1, "epoch"))
    stop = StopOnSignal()
    trainer.extend(stop)
    trainer.run()
    if stop.signal:
        say(f"stopped by signal {stop.signal}: --resume auto goes on")


def make_grid(args: argparse.Namespace, n_layers: int) -> tuple[Grid, Plan]:
    """Returns the ranks as a grid, and what they run, as asked for."""
    if args.plan:
        plan = Plan.load(args.plan)
        if plan.stages_per_rank > 1:
            raise ValueError(
                f"{args.plan} has {plan.stages_per_rank} stages on a rank, but this"
                f" script trains one: plan with --schedule 1f1b"
            )
        return Grid.of(plan, comm, args.placement), plan
    grid = Grid(comm, args.stages, args.placement)
    return grid, Plan(
        Plan.uniform(n_layers, args.stages).cuts,
        # Of each replica: all together have as many as asked for, if that can be.
        max(1, args.microbatches // grid.n_replicas),
        args.schedule,
        replicas=grid.n_replicas,
    )


def read_digits() -> tuple[TupleDataset, TupleDataset]:
    """Returns the samples to train with, and those to test with."""
    x, t = load_digits(return_X_y=True)
    images = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    digits = TupleDataset(images, t.astype(np.int32))
    return split_dataset_random(digits, N_TRAIN, seed=0)


def say(line: str) -> None:
    """Prints on one rank only."""
    if comm.rank == 0:
        print(line, flush=True)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--stages", type=int, default=2, help="of a replica; a divisor of the ranks")
    add("--placement", choices=[*PLACEMENTS, "auto"], default="auto")
    add("--plan", help="file of divisible plan; it says stages, microbatches, schedule")
    add("--epoch", type=int, default=8, help="number of epochs")
    add("--batchsize", type=int, help="of all replicas; default: the plan's, or 60")
    add("--microbatches", type=int, default=4, help="of all replicas; a multiple")
    add("--schedule", choices=schedules.NAMES, default="1f1b")
    add("--wire-dtype", choices=list(WIRE), default="fp32", help="of the gradients")
    add("--shares", type=shares, help="of each replica, such as 2,1; default: equal")
    add("--width", type=int, default=32, help="channels of the first convolution")
    add("--seed", type=int, default=0, help="of weights, dropout, order of samples")
    add("--resume", help="snapshot to go on from; auto: the newest in --out, if any")
    add("--out", default="result", help="folder for the log and snapshots")
    return parser.parse_args()


def shares(text: str) -> list[float]:
    """Reads numbers with commas between."""
    return [float(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
