"""Trains an autoencoder with tied weights on scikit-learn's handwritten digits.

    mpiexec -n 2 python examples/autoencoder/train.py
    mpiexec -n 4 python examples/autoencoder/train.py --code 4

The decoder's weights are the transposes of the encoder's. Where the two lie in
different stages, each has a copy, and the copies stay equal bit for bit: the pipeline
adds up their gradients after every minibatch. Losses are the same on any number of
ranks, up to rounding.

In the end it tells how much of the test digits' variance is in the code, and how much
principal component analysis explains, which is the best that is linear.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import chainer
import chainer.functions as F
import numpy as np
from mpi4py import MPI

# The root of the repository, for what the examples share.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from divisible import deferred_init
from examples.autoencoder.model import Autoencoder
from examples.shared import COUNTS, Parser, Samples, cut_model, epochs, say
from examples.train.data import load
from pipeline import Pipeline, abort_on_error

comm = MPI.COMM_WORLD


def main() -> None:
    """Trains, and tests after every epoch."""
    abort_on_error()
    parser = make_parser()
    args = parser.parse_args()
    check(parser, args)

    flat = [images.x.reshape(len(images.x), -1) for images in load("digits")]
    # What goes in is what should come out.
    train, test = (Samples(x, x) for x in flat)
    with deferred_init(args.seed):
        model = Autoencoder((64, args.units, args.code))
    plan, schedule, stages = cut_model(parser, args, model, train, F.mean_squared_error)
    del model

    optimizers = [chainer.optimizers.Adam(0.005).setup(stage) for stage in stages]
    pipe = Pipeline(
        stages,
        comm,
        schedule=schedule,
        lossfun=F.mean_squared_error,
        accfun=None,
        checkpoint=args.checkpoint,
        seed=args.seed,
    )
    say(f"{len(train.x)} digits; {plan.n_layers} layers cut at {plan.cuts}")
    say("epoch   train loss   test loss   samples/s")
    for epoch in epochs(pipe, optimizers, train, test, args):
        if epoch.number % args.every == 0 or epoch.number == args.epoch:
            say(
                f"{epoch.number:5d} {epoch.train['loss']:12.5f}"
                f" {epoch.test['loss']:11.5f} {len(train.x) / epoch.seconds:11.0f}"
            )
    explained = 1 - epoch.test["loss"] / np.square(test.x - train.x.mean(axis=0)).mean()
    linear = explained_linearly(train.x, test.x, args.code)
    say(
        f"{args.code} numbers for each digit explain {explained:.1%} of the variance,"
        f" {args.code} principal components {linear:.1%}"
    )


def explained_linearly(train: np.ndarray, test: np.ndarray, n: int) -> float:
    """Returns how much of the variance the first principal components explain."""
    mean = train.mean(axis=0)
    _, _, components = np.linalg.svd(train - mean, full_matrices=False)
    left = (test - mean) - (test - mean) @ components[:n].T @ components[:n]
    return 1 - np.square(left).mean() / np.square(test - mean).mean()


def make_parser() -> Parser:
    """Describes the options."""
    parser = Parser(__doc__)
    parser.add_pipeline_arguments(epochs=40, batchsize=64)
    add = parser.add_argument
    add("--units", type=int, default=128, help="of the layer in between")
    add("--code", type=int, default=8, help="numbers for each digit")
    add("--every", type=int, default=10, help="epochs between two lines")
    return parser


def check(parser: Parser, args: argparse.Namespace) -> None:
    """Refuses what cannot be trained."""
    parser.check_positive(args, *COUNTS, "units", "code", "every")
    parser.check_installed(sklearn="the digits are scikit-learn's")


if __name__ == "__main__":
    main()
