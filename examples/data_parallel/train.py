"""Trains replicas of a network on scikit-learn's handwritten digits.

    mpiexec -n 2 python examples/data_parallel/train_chainermn.py
    mpiexec -n 2 python examples/data_parallel/train.py

Each rank has a replica, and a part of the samples. The first script uses ChainerMN. The
second differs in two lines, and sends gradients between hosts in 8 bits.
"""

from __future__ import annotations

import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np
from chainer.datasets import TupleDataset, split_dataset_random
from chainer.iterators import SerialIterator
from chainer.training import StandardUpdater, Trainer, extensions
from sklearn.datasets import load_digits

from data_parallel import create_multi_node_optimizer


def main() -> None:
    """Trains, and tests after every epoch."""
    args = parse_arguments()
    comm = chainermn.create_communicator("naive")
    np.random.seed(args.seed)  # the same weights on all ranks
    model = L.Classifier(make_network(args.units))
    momentum = chainer.optimizers.MomentumSGD(0.1)
    optimizer = create_multi_node_optimizer(momentum, comm, exchange_dtype="int8")
    optimizer.setup(model)

    # Rank 0 reads the samples, and sends each rank a part; all parts have one length.
    train = test = None
    if comm.rank == 0:
        train, test = read_digits()
    train = chainermn.scatter_dataset(train, comm, shuffle=True, seed=args.seed)
    test = chainermn.scatter_dataset(test, comm)

    batches = SerialIterator(train, args.batchsize)
    tests = SerialIterator(test, args.batchsize, repeat=False, shuffle=False)
    updater = StandardUpdater(batches, optimizer)
    trainer = Trainer(updater, (args.epoch, "epoch"), args.out)
    evaluator = extensions.Evaluator(tests, model)
    trainer.extend(chainermn.create_multi_node_evaluator(evaluator, comm))
    if comm.rank == 0:
        trainer.extend(extensions.LogReport())
        columns = ["epoch", "main/loss", "validation/main/loss"]
        columns += ["validation/main/accuracy", "elapsed_time"]
        trainer.extend(extensions.PrintReport(columns))
    trainer.run()


def make_network(units: int) -> chainer.Sequential:
    """Returns a perceptron: most of its parameters are matrices."""
    hidden = [(64, units), (units, units)]
    layers = [layer for sizes in hidden for layer in (L.Linear(*sizes), F.relu)]
    return chainer.Sequential(*layers, L.Linear(units, 10))


def read_digits() -> tuple[TupleDataset, TupleDataset]:
    """Returns the samples to train with, and those to test with."""
    x, t = load_digits(return_X_y=True)
    digits = TupleDataset((x / 16).astype(np.float32), t.astype(np.int32))
    return split_dataset_random(digits, 1440, seed=0)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batchsize", type=int, default=30, help="of each rank")
    parser.add_argument("--epoch", type=int, default=10)
    parser.add_argument("--units", type=int, default=400, help="of a hidden layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="result", help="for the log")
    return parser.parse_args()


if __name__ == "__main__":
    main()
