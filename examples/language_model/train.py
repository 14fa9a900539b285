"""Trains a small language model, whose embedding is tied to its output layer.

    mpiexec -n 2 python examples/language_model/train.py
    mpiexec -n 3 python examples/language_model/train.py --recompute except_last
    mpiexec -n 2 python examples/language_model/train.py --plan auto
    mpiexec -n 2 python examples/language_model/train.py --lstm

The text is the part of Python's language reference that ``help()`` shows. The first
stage reads word numbers. The first and the last layer have one parameter: the copies of
the two ranks stay equal bit for bit. Dropout is the same on any number of ranks, and so
are losses, up to rounding.

With ``--lstm``, recurrent layers continue from minibatch to minibatch: each sample
starts from the state after the sample in the same place (truncated back-propagation
through time).

Perplexity is the exponential of the loss: the number of equally likely words that would
leave the model as uncertain about the next one.
"""

from __future__ import annotations

import argparse
import math

import chainer
import data
import numpy as np
from chainer.datasets import TupleDataset
from chainer.iterators import SerialIterator
from chainer.training import Trainer, extensions
from model import LanguageModel, RecurrentModel
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
    vocabulary, train, test = data.load(args.words, args.positions)
    by_frequency = unigram_perplexity(train.t, test.t, len(vocabulary))
    if args.lstm:
        train, test = (data.in_columns(each, args.batchsize) for each in (train, test))

    with deferred_init(args.seed):
        kind = RecurrentModel if args.lstm else LanguageModel
        model = kind(len(vocabulary), args.units, args.layers, dropout=args.dropout)
    # Each rank keeps its own layers.
    pipe = Pipeline(model, comm, seed=args.seed, **planned(args, train))
    del model
    optimizer = pipe.setup(chainer.optimizers.Adam(0.004))

    batches = SerialIterator(
        TupleDataset(*train), args.batchsize, shuffle=not args.lstm
    )
    n_tests = args.batchsize if args.lstm else 100
    tests = SerialIterator(TupleDataset(*test), n_tests, repeat=False, shuffle=False)
    updater = PipelineUpdater(batches, optimizer, pipe)
    trainer = Trainer(updater, (args.epoch, "epoch"), args.out)
    trainer.extend(PipelineEvaluator(tests, pipe))
    trainer.extend(extensions.LogReport())
    columns = ["epoch", "main/loss", "validation/main/loss", "validation/main/accuracy"]
    trainer.extend(extensions.PrintReport([*columns, "pipeline/samples_per_second"]))
    trainer.extend(ProgressLine())
    trainer.run()

    result = PipelineEvaluator(tests, pipe)()
    if comm.rank == 0:
        gates = [value for name, value in result.items() if name.endswith("/gate")]
        if gates:
            print("gates are open by " + " ".join(f"{gate:.2f}" for gate in gates))
        print(
            f"test perplexity {math.exp(result['main/loss']):.1f}, by the frequency of"
            f" words alone {by_frequency:.1f}"
        )


def planned(args: argparse.Namespace, train: data.Samples) -> dict:
    """Returns the pipeline's arguments for a plan, or for the options instead."""
    if args.plan == "auto":
        first = {"x": train.x[: args.batchsize], "t": train.t[: args.batchsize]}
        return {"plan": "auto", "directory": args.out, **first}
    if args.plan is not None:
        return {"plan": args.plan}
    is_own = isinstance(args.schedule, Schedule)
    return {
        "n_microbatches": None if is_own else args.microbatches,
        "schedule": args.schedule,
        "recompute": args.recompute,
    }


def unigram_perplexity(train: np.ndarray, test: np.ndarray, n_words: int) -> float:
    """Returns the perplexity of a model that knows only the frequencies of words."""
    counts = np.bincount(train.ravel(), minlength=n_words) + 1
    return float(np.exp(-np.log(counts / counts.sum())[test].mean()))


def parse_arguments() -> argparse.Namespace:
    """Reads the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--epoch", type=int, default=4, help="number of epochs")
    add("--batchsize", type=int, default=32, help="samples of a minibatch")
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
    add("--plan", help="file of a plan, instead of these three; auto: measure and plan")
    add("--words", type=int, default=1000, help="size of the vocabulary at most")
    add("--positions", type=int, default=24, help="words of a sample")
    add("--units", type=int, default=48, help="units of each position")
    add("--layers", type=int, default=3, help="convolutions, or recurrent layers")
    add("--lstm", action="store_true", help="recurrent layers that go on in the text")
    add("--dropout", type=float, default=0.2, help="ratio; 0 for none")
    add("--seed", type=int, default=0, help="seed of weights, dropout, order")
    add("--out", default="result", help="folder for the log")
    return parser.parse_args()


if __name__ == "__main__":
    main()
