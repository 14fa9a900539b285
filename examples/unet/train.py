"""Trains a U-Net that finds handwritten digits on photographs, pixel by pixel.

    mpiexec -n 3 python examples/unet/train.py
    mpiexec -n 2 python examples/unet/train.py --recompute always

The model's skip connections lead past the layers in between, from the rank that stashes
a tensor directly to the rank that pops it. Digits and photographs are those that come
with scikit-learn. Results are measured as intersection over union: the share of
correctly found pixels among all pixels that belong to a digit or were found. Losses are
the same on any number of ranks, up to rounding.
"""

from __future__ import annotations

import argparse

import chainer
import data
import numpy as np
from chainer.datasets import TupleDataset
from chainer.iterators import SerialIterator
from chainer.training import Trainer, extensions
from model import UNet
from mpi4py import MPI

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


def main() -> None:
    """Trains, and tests after every epoch."""
    abort_on_error()
    args = parse_arguments()
    np.random.seed(args.seed)
    train, test = data.load(args.samples, max(1, args.samples // 4))

    with deferred_init(args.seed):
        model = UNet(width=args.width)
    is_own = isinstance(args.schedule, Schedule)
    # Each rank keeps its own layers.
    pipe = Pipeline(
        model,
        comm,
        n_microbatches=None if is_own else args.microbatches,
        schedule=args.schedule,
        accfun=intersection_over_union,
        recompute=args.recompute,
        seed=args.seed,
    )
    del model
    optimizer = pipe.setup(chainer.optimizers.Adam(0.003))

    batches = SerialIterator(TupleDataset(*train), args.batchsize)
    tests = SerialIterator(TupleDataset(*test), 20, repeat=False, shuffle=False)
    updater = PipelineUpdater(batches, optimizer, pipe)
    trainer = Trainer(updater, (args.epoch, "epoch"), args.out)
    trainer.extend(PipelineEvaluator(tests, pipe))
    trainer.extend(extensions.LogReport())
    columns = ["epoch", "main/loss", "validation/main/loss", "validation/main/accuracy"]
    trainer.extend(extensions.PrintReport([*columns, "pipeline/samples_per_second"]))
    trainer.extend(ProgressLine())
    trainer.run()

    found = PipelineEvaluator(tests, pipe)()["main/accuracy"]
    if comm.rank == 0:
        # A network that finds a digit in every pixel has this share.
        print(
            f"test intersection over union {found:.1%},"
            f" with all pixels taken for digits {test.t.mean():.1%}"
        )


def intersection_over_union(y: chainer.Variable, t: np.ndarray) -> chainer.Variable:
    """Returns the mean over the images, of the pixels of digits.

    Args:
        y: Scores of the two classes, of the shape (samples, 2, height, width).
        t: Classes of the shape (samples, height, width).
    """
    found, there = y.array[:, 1] > y.array[:, 0], t == 1
    both = (found & there).sum(axis=(1, 2))
    either = (found | there).sum(axis=(1, 2))
    return chainer.as_variable(np.asarray((both / either).mean()))


def parse_arguments() -> argparse.Namespace:
    """Reads the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--epoch", type=int, default=6, help="number of epochs")
    add("--batchsize", type=int, default=8, help="samples of a minibatch")
    add("--microbatches", type=int, default=2, help="microbatches of a minibatch")
    add(
        "--schedule",
        type=schedule_argument,
        default="1f1b",
        metavar="SCHEDULE",
        help="a name of divisible.schedules.NAMES, or a file with the text of a"
        " schedule, which has microbatches of its own",
    )
    add("--recompute", choices=RECOMPUTATIONS, default="never")
    add("--samples", type=int, default=400, help="training images")
    add("--width", type=int, default=8, help="channels of the first level")
    add("--seed", type=int, default=0, help="seed of weights and order")
    add("--out", default="result", help="folder for the log")
    return parser.parse_args()


if __name__ == "__main__":
    main()
