"""Everything that a long run on a cluster needs, in one script.

    divisible profile examples/cluster/model.py:Network --input 1x8x8 --batch 4,8,16
    divisible plan profile-4.json profile-8.json profile-16.json --ranks 2 --batch 64
    mpiexec -n 2 divisible run examples/cluster/train.py --plan plan.json --resume auto

The plan has the cuts of the layers, the number of microbatches, their order, and all
other decisions. A batch system sends a signal before a job's time is over: the script
then finishes the minibatch, saves a snapshot and exits with code 75. The same command
resumes the run, also on another number of ranks with another plan. Each epoch writes a
line to the log and a timeline of a step. "divisible watch result" shows the run while
it trains, and "divisible report result" makes a page of it.
"""

from __future__ import annotations

import argparse

import chainer
import chainer.functions as F
import numpy as np
from chainer.datasets import TupleDataset, split_dataset_random
from chainer.iterators import SerialIterator
from chainer.training import Trainer, extensions
from model import Network
from mpi4py import MPI
from sklearn.datasets import load_digits

from divisible import Plan, deferred_init
from mixed_precision import DynamicLossScale, MixedPrecision, float32_loss, to_float16
from pipeline import (
    Pipeline,
    PipelineEvaluator,
    PipelineUpdater,
    ProgressLine,
    StopOnSignal,
    TimelineReport,
    memory_copies,
    snapshot,
)

comm = MPI.COMM_WORLD
N_TRAIN = 1440


def main() -> None:
    """Trains, from the beginning or from where an earlier job was stopped."""
    args = parse_arguments()
    # No rank makes the layers of another one; weights do not depend on the cut.
    with deferred_init(args.seed):
        model = Network(args.width)
    optimizer, scale = chainer.optimizers.MomentumSGD(0.02), None
    if args.half:
        model = to_float16(model)
        # All ranks take or skip a step together.
        optimizer = MixedPrecision(optimizer, loss_scale=DynamicLossScale(), comm=comm)
        scale = optimizer.loss_scale
    plan = read_plan(args, len(model))
    pipe = Pipeline(
        model,
        comm,
        plan=plan,
        lossfun=float32_loss(F.softmax_cross_entropy),
        loss_scale=scale,
        seed=args.seed,
    )
    del model
    optimizer = pipe.setup(optimizer)

    np.random.seed(args.seed)
    train, test = read_digits(np.float16 if args.half else np.float32)
    batches = SerialIterator(train, args.batchsize)
    tests = SerialIterator(test, args.batchsize, repeat=False, shuffle=False)
    trainer = Trainer(
        PipelineUpdater(batches, optimizer, pipe), (args.epoch, "epoch"), args.out
    )
    trainer.extend(PipelineEvaluator(tests, pipe))
    trainer.extend(extensions.LogReport())
    columns = ["epoch", "main/loss", "validation/main/loss"]
    columns += ["validation/main/accuracy", "elapsed_time"]
    trainer.extend(extensions.PrintReport(columns))
    trainer.extend(TimelineReport())
    trainer.extend(ProgressLine())
    trainer.extend(StopOnSignal())
    trainer.extend(snapshot(n_retains=2, resume=args.resume), trigger=(1, "epoch"))
    # After a loss the run continues from a recent minibatch. Copies take 3 % of the
    # time at most.
    resume = "auto" if args.resume == "auto" else None
    trainer.extend(memory_copies("auto", resume=resume, on_error="warn"))
    trainer.run()


def read_plan(args: argparse.Namespace, n_layers: int) -> Plan:
    """Returns the plan that was given, or stages of equally many layers."""
    if args.plan is None:
        plan = Plan(Plan.uniform(n_layers, comm.size).cuts, 4, "1f1b")
    else:
        plan = Plan.load(args.plan.replace("{ranks}", str(comm.size)))
    args.batchsize = args.batchsize or plan.batch or 64
    if comm.rank == 0 and plan.conditions is not None:
        print(f"{args.plan} is for {plan.conditions}", flush=True)
    return plan


def read_digits(dtype: type) -> tuple[TupleDataset, TupleDataset]:
    """Returns the samples to train with, and those to test with."""
    x, t = load_digits(return_X_y=True)
    images = (x / 16).astype(dtype).reshape(-1, 1, 8, 8)
    return split_dataset_random(TupleDataset(images, t.astype(np.int32)), N_TRAIN, 0)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--plan", help="file of divisible plan; {ranks} is the number of ranks")
    add("--width", type=int, default=16, help="channels of the first block")
    add("--epoch", type=int, default=5, help="number of epochs")
    add("--batchsize", type=int, help="samples; default: the plan's, or 64")
    add("--half", action="store_true", help="float16 with float32 master weights")
    add("--seed", type=int, default=0, help="seed of weights and order")
    add("--out", default="result", help="folder for the log, pictures and snapshots")
    add("--resume", help="'auto', or the path of a snapshot")
    return parser.parse_args()


if __name__ == "__main__":
    main()
