"""Trains a small language model, whose embedding is tied to its output layer.

    mpiexec -n 2 python examples/language_model/train.py
    mpiexec -n 3 python examples/language_model/train.py --checkpoint except_last

The text is Python's language reference, as far as Python's own ``help()`` shows it.
The first stage reads word numbers. The first and the last layer have one parameter: the
copies of the two ranks stay equal bit for bit. Dropout is the same on any number of
ranks, and so are losses, up to rounding.

Perplexity is the exponential of the loss: among how many words, equally likely, the
model would be as much in doubt about the next one.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import chainer
import numpy as np
from mpi4py import MPI

# The root of the repository, for what the examples share.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from divisible import deferred_init
from examples.language_model import data
from examples.language_model.model import LanguageModel
from examples.shared import COUNTS, Parser, cut_model, epochs, say
from pipeline import Pipeline, abort_on_error

comm = MPI.COMM_WORLD


def main() -> None:
    """Trains, and tests after every epoch."""
    abort_on_error()
    parser = make_parser()
    args = parser.parse_args()
    check(parser, args)

    with parser.refusing():
        vocabulary, train, test = data.load(args.words, args.positions)
    with deferred_init(args.seed):
        model = LanguageModel(
            len(vocabulary), args.units, args.convolutions, dropout=args.dropout
        )
    plan, schedule, stages = cut_model(parser, args, model, train)
    del model

    optimizers = [chainer.optimizers.Adam(0.004).setup(stage) for stage in stages]
    pipe = Pipeline(
        stages,
        comm,
        schedule=schedule,
        checkpoint=args.checkpoint,
        seed=args.seed,
    )
    say(f"{train.x.size} words of text, {len(vocabulary)} different ones")
    say(f"{plan.n_layers} layers cut at {plan.cuts}")
    say("epoch   train loss   test loss  perplexity  accuracy   words/s")
    for epoch in epochs(pipe, optimizers, train, test, args):
        say(
            f"{epoch.number:5d} {epoch.train['loss']:12.4f}"
            f" {epoch.test['loss']:11.4f} {math.exp(epoch.test['loss']):11.1f}"
            f" {epoch.test['accuracy']:9.3f} {train.x.size / epoch.seconds:9.0f}"
        )
    gates = [value for name, value in epoch.test.items() if name.endswith("/gate")]
    say("gates are open by " + " ".join(f"{gate:.2f}" for gate in gates))
    say(
        f"test perplexity {math.exp(epoch.test['loss']):.1f}, by the frequency of words"
        f" alone {unigram_perplexity(train.t, test.t, len(vocabulary)):.1f}"
    )


def unigram_perplexity(train: np.ndarray, test: np.ndarray, n_words: int) -> float:
    """Returns the perplexity of a model that only knows how frequent words are."""
    counts = np.bincount(train.ravel(), minlength=n_words) + 1
    return float(np.exp(-np.log(counts / counts.sum())[test].mean()))


def make_parser() -> Parser:
    """Describes the options."""
    parser = Parser(__doc__)
    parser.add_pipeline_arguments(epochs=4, batchsize=32)
    add = parser.add_argument
    add("--words", type=int, default=1000, help="size of the vocabulary at most")
    add("--positions", type=int, default=24, help="words of a sample")
    add("--units", type=int, default=48, help="of each position")
    add("--convolutions", type=int, default=3, help="number of gated convolutions")
    add("--dropout", type=float, default=0.2, help="ratio; 0 for none")
    return parser


def check(parser: Parser, args: argparse.Namespace) -> None:
    """Refuses what cannot be trained."""
    parser.check_positive(args, *COUNTS, "words", "positions", "units", "convolutions")
    if not 0 <= args.dropout < 1:
        parser.error(f"--dropout must be at least 0 and below 1, not {args.dropout}")


if __name__ == "__main__":
    main()
