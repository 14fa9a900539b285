"""Trains an autoencoder with tied weights on scikit-learn's handwritten digits.

    mpiexec -n 2 python examples/autoencoder/train.py
    mpiexec -n 4 python examples/autoencoder/train.py --code 4

The decoder's weights are the transposes of the encoder's. Where the two lie in
different stages, each has a copy, and the copies stay equal bit for bit: the pipeline
adds up their gradients after every minibatch. Losses are the same on any number of
ranks, up to rounding.

At the end it prints how much of the test digits' variance is in the code, and how much
principal component analysis explains, which is the best linear method.
"""

from __future__ import annotations

import argparse

import chainer
import chainer.functions as F
import numpy as np
from chainer.datasets import TupleDataset
from chainer.iterators import SerialIterator
from chainer.training import Trainer, extensions
from model import Autoencoder
from mpi4py import MPI
from sklearn.datasets import load_digits

from divisible import deferred_init
from divisible.schedules import Schedule
from divisible.schedules.recomputation import RECOMPUTATIONS
from divisible.schedules.schedule_files import schedule_argument
from pipeline import (
    Pipeline,
    PipelineEvaluator,
    PipelineUpdater,
    ProgressLine,
    abort_on_error,
)

comm = MPI.COMM_WORLD
N_TEST = 360


def main() -> None:
    """Trains, and tests after every epoch."""
    abort_on_error()
    args = parse_arguments()
    np.random.seed(args.seed)
    digits = (load_digits().data / 16).astype(np.float32)
    digits = digits[np.random.RandomState(0).permutation(len(digits))]
    train, test = digits[N_TEST:], digits[:N_TEST]

    with deferred_init(args.seed):
        model = Autoencoder((64, args.units, args.code))
    is_own = isinstance(args.schedule, Schedule)
    # Each rank keeps its own layers.
    pipe = Pipeline(
        model,
        comm,
        n_microbatches=None if is_own else args.microbatches,
        schedule=args.schedule,
        lossfun=F.mean_squared_error,
        accfun=None,
        recompute=args.recompute,
        seed=args.seed,
    )
    del model
    optimizer = pipe.setup(chainer.optimizers.Adam(0.005))

    # The targets of an autoencoder are its inputs.
    batches = SerialIterator(TupleDataset(train, train), args.batchsize)
    tests = SerialIterator(TupleDataset(test, test), 100, repeat=False, shuffle=False)
    updater = PipelineUpdater(batches, optimizer, pipe)
    trainer = Trainer(updater, (args.epoch, "epoch"), args.out)
    trainer.extend(PipelineEvaluator(tests, pipe))
    trainer.extend(extensions.LogReport(trigger=(args.every, "epoch")))
    columns = ["epoch", "main/loss", "validation/main/loss"]
    trainer.extend(
        extensions.PrintReport([*columns, "pipeline/samples_per_second"]),
        trigger=(args.every, "epoch"),
    )
    trainer.extend(ProgressLine())
    trainer.run()

    loss = PipelineEvaluator(tests, pipe)()["main/loss"]
    explained = 1 - loss / np.square(test - train.mean(axis=0)).mean()
    linear = explained_linearly(train, test, args.code)
    if comm.rank == 0:
        print(
            f"of the variance, {args.code} numbers for each digit explain"
            f" {explained:.1%}, and {args.code} principal components {linear:.1%}"
        )


def explained_linearly(train: np.ndarray, test: np.ndarray, n: int) -> float:
    """Returns how much of the variance the first principal components explain."""
    mean = train.mean(axis=0)
    _, _, components = np.linalg.svd(train - mean, full_matrices=False)
    left = (test - mean) - (test - mean) @ components[:n].T @ components[:n]
    return 1 - np.square(left).mean() / np.square(test - mean).mean()


def parse_arguments() -> argparse.Namespace:
    """Reads the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--epoch", type=int, default=40, help="number of epochs")
    add("--batchsize", type=int, default=64, help="samples of a minibatch")
    add("--microbatches", type=int, default=4, help="microbatches of a minibatch")
    add(
        "--schedule",
        type=schedule_argument,
        default="1f1b",
        metavar="SCHEDULE",
        help="a name of divisible.schedules.NAMES, or a file with the text of a"
        " schedule, which has microbatches of its own",
    )
    add("--recompute", choices=RECOMPUTATIONS, default="never")
    add("--units", type=int, default=128, help="units of the layer in between")
    add("--code", type=int, default=8, help="numbers for each digit")
    add("--every", type=int, default=10, help="epochs between two lines")
    add("--seed", type=int, default=0, help="seed of weights and order")
    add("--out", default="result", help="folder for the log")
    return parser.parse_args()


if __name__ == "__main__":
    main()
