"""Trains by a plan, with replicas or without, on scikit-learn's handwritten digits.

    mpiexec -n 4 python examples/grid/train.py              measures, and plans
    mpiexec -n 4 python examples/grid/train.py --stages 2   2 replicas of 2 stages
    mpiexec -n 4 python examples/grid/train.py --stages 1   4 replicas of the model
    mpiexec -n 4 divisible run --plan plan.json examples/grid/train.py

Any plan runs: replicas share every minibatch, and a rank has one stage or several.
Losses are the same by any plan, up to rounding. This includes dropout if all plans have
the same number of microbatches together, as masks depend on a microbatch's number among
those of all replicas. A run that was stopped, by SIGTERM to any rank, resumes with
--resume auto, by the same plan or another one.
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

from divisible import Plan, deferred_init
from divisible.communication.wire import WIRE
from divisible.schedules import Schedule
from divisible.schedules.schedule_files import schedule_argument
from pipeline import (
    Pipeline,
    PipelineEvaluator,
    PipelineUpdater,
    ProgressLine,
    StopOnSignal,
    abort_on_error,
    snapshot,
)

comm = MPI.COMM_WORLD
N_TRAIN, BATCHSIZE = 1440, 60


def main() -> None:
    """Trains, and tests after every epoch."""
    # From here on, an error on one rank ends all ranks.
    abort_on_error()
    args = parse_arguments()
    np.random.seed(args.seed)
    train, test = read_digits()
    # All ranks make the same model, and each will keep its own layers only.
    with deferred_init(args.seed):
        model = DigitNet(args.width)
    pipe = Pipeline(model, comm, seed=args.seed, **wanted(args, len(model), train))
    del model
    optimizer = pipe.setup(chainer.optimizers.MomentumSGD(0.05))
    if comm.rank == 0:
        print(pipe, flush=True)

    batchsize = args.batchsize or pipe.plan.batch or BATCHSIZE
    batches = SerialIterator(train, batchsize)
    tests = SerialIterator(test, batchsize, repeat=False, shuffle=False)
    updater = PipelineUpdater(batches, optimizer, pipe)
    trainer = Trainer(updater, (args.epoch, "epoch"), args.out)
    trainer.extend(PipelineEvaluator(tests, pipe))
    trainer.extend(extensions.LogReport())
    columns = ["epoch", "main/loss", "validation/main/loss"]
    columns += ["validation/main/accuracy", "elapsed_time"]
    trainer.extend(extensions.PrintReport(columns))
    trainer.extend(ProgressLine())
    trainer.extend(snapshot(n_retains=2, resume=args.resume), trigger=(1, "epoch"))
    stop = StopOnSignal()
    trainer.extend(stop)
    trainer.run()
    if stop.signal and comm.rank == 0:
        print(f"stopped by signal {stop.signal}: --resume auto goes on", flush=True)


def wanted(args: argparse.Namespace, n_layers: int, train: TupleDataset) -> dict:
    """Returns the pipeline's arguments, from the options."""
    if args.stages is None:
        first = train[: args.batchsize or BATCHSIZE]
        x, t = chainer.dataset.concat_examples(first)
        return {"plan": "auto", "x": x, "t": t, "directory": args.out}
    replicas, rest = divmod(comm.size, args.stages)
    if rest or not replicas:
        raise ValueError(f"--stages {args.stages} does not divide {comm.size} ranks")
    is_own = isinstance(args.schedule, Schedule)
    plan = Plan(
        Plan.uniform(n_layers, args.stages).cuts,
        # Microbatches of each replica: together they have the number asked for, if it
        # can be divided.
        None if is_own else max(1, args.microbatches // replicas),
        None if is_own else args.schedule,
        replicas=replicas,
        shares=args.shares,
        exchange_dtype=args.exchange_dtype,
    )
    return {"plan": plan, "schedule": args.schedule}


def read_digits() -> tuple[TupleDataset, TupleDataset]:
    """Returns the samples to train with, and those to test with."""
    x, t = load_digits(return_X_y=True)
    images = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    digits = TupleDataset(images, t.astype(np.int32))
    return split_dataset_random(digits, N_TRAIN, seed=0)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--stages", type=int, help="a divisor of the ranks; default: the fastest")
    add("--epoch", type=int, default=8, help="number of epochs")
    add("--batchsize", type=int, help="of all replicas; default: the plan's, or 60")
    add("--microbatches", type=int, default=4, help="with --stages; of all replicas")
    add(
        "--schedule",
        type=schedule_argument,
        default="1f1b",
        metavar="SCHEDULE",
        help="with --stages; a name of one with one stage on each rank, or a file with"
        " the text of a schedule, which has microbatches of its own",
    )
    add("--exchange-dtype", choices=list(WIRE), default="fp32", help="of gradients")
    add("--shares", type=shares, help="of replicas, such as 2,1; default: equal")
    add("--width", type=int, default=32, help="channels of the first convolution")
    add("--seed", type=int, default=0, help="seed of weights, dropout, order")
    add("--resume", help="snapshot to resume; auto: the newest in --out, if any")
    add("--out", default="result", help="folder for the log, the plan and snapshots")
    return parser.parse_args()


def shares(text: str) -> list[float]:
    """Reads numbers that are separated by commas."""
    return [float(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
