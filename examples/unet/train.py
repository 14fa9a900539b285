"""Trains a U-Net that finds handwritten digits on photographs, pixel by pixel.

    mpiexec -n 3 python examples/unet/train.py
    mpiexec -n 2 python examples/unet/train.py --checkpoint always

The model's skip connections lead past the layers in between, from the rank that stashes
a tensor directly to the rank that pops it. Digits and photographs are those that come
with scikit-learn. What is found is measured as intersection over union: of the pixels
that belong to a digit or are said to, how many are both. Losses are the same on any
number of ranks, up to rounding.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import chainer
import numpy as np
from mpi4py import MPI

# The root of the repository, for what the examples share.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from divisible import deferred_init
from examples.shared import COUNTS, Parser, cut_model, epochs, say
from examples.unet import data
from examples.unet.model import UNet
from pipeline import Pipeline, abort_on_error

comm = MPI.COMM_WORLD


def main() -> None:
    """Trains, and tests after every epoch."""
    abort_on_error()
    parser = make_parser()
    args = parser.parse_args()
    check(parser, args)

    train, test = data.load(args.samples, max(1, args.samples // 4))
    with deferred_init(args.seed):
        model = UNet(width=args.width)
    plan, schedule, stages = cut_model(parser, args, model, train)
    del model

    optimizers = [chainer.optimizers.Adam(0.003).setup(stage) for stage in stages]
    pipe = Pipeline(
        stages,
        comm,
        schedule=schedule,
        accfun=intersection_over_union,
        checkpoint=args.checkpoint,
        seed=args.seed,
    )
    say(f"{len(train.x)} images; {plan.n_layers} layers cut at {plan.cuts}")
    say("epoch   train loss     IoU   test loss     IoU   samples/s")
    for epoch in epochs(pipe, optimizers, train, test, args):
        say(
            f"{epoch.number:5d} {epoch.train['loss']:12.4f}"
            f" {epoch.train['accuracy']:7.3f} {epoch.test['loss']:11.4f}"
            f" {epoch.test['accuracy']:7.3f} {len(train.x) / epoch.seconds:11.0f}"
        )
    # What says of every pixel that it belongs to a digit is right this often.
    share = test.t.mean()
    say(
        f"test intersection over union {epoch.test['accuracy']:.1%},"
        f" with all pixels taken for digits {share:.1%}"
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


def make_parser() -> Parser:
    """Describes the options."""
    parser = Parser(__doc__)
    parser.add_pipeline_arguments(epochs=6, batchsize=8, microbatches=2)
    add = parser.add_argument
    add("--samples", type=int, default=400, help="training images")
    add("--width", type=int, default=8, help="channels of the first level")
    return parser


def check(parser: Parser, args: argparse.Namespace) -> None:
    """Refuses what cannot be trained."""
    parser.check_positive(args, *COUNTS, "samples", "width")
    parser.check_installed(
        sklearn="digits and photographs are scikit-learn's",
        PIL="to read the photographs needs Pillow",
    )


if __name__ == "__main__":
    main()
