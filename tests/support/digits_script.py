"""A script that learns digits, for ``divisible compress``.

Arguments: the updater, ``pipeline`` or ``chainer``; the number of epochs; and the
number of the evaluation that ends the process, 0 for none, counted in a file.
"""

import os
import sys
from pathlib import Path

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.datasets import TupleDataset
from chainer.iterators import SerialIterator
from chainer.training import StandardUpdater, Trainer, extensions
from mpi4py import MPI
from sklearn.datasets import load_digits

from divisible import Divisible
from pipeline import Pipeline, PipelineEvaluator, PipelineUpdater


class Counted:
    """An evaluation that ends the process at a number of it."""

    def __init__(self, function, last):
        self.function, self.last = function, last

    def __call__(self, *arguments):
        file = Path(os.environ.get("TEST_EVALUATIONS", "evaluations"))
        if MPI.COMM_WORLD.rank == 0:
            number = int(file.read_text()) + 1 if file.exists() else 1
            file.write_text(str(number))
            if number == self.last:
                sys.exit(9)
        return self.function(*arguments)


def main(kind, n_epochs, last):
    np.random.seed(0)
    x, t = load_digits(return_X_y=True)
    x, t = np.float32(x / 16), t.astype(np.int32)
    train, test = TupleDataset(x[:1200], t[:1200]), TupleDataset(x[1200:], t[1200:])
    batches = SerialIterator(train, 100)
    tests = SerialIterator(test, 300, repeat=False, shuffle=False)
    layers = L.Linear(64, 40), F.relu, L.Linear(40, 20), F.relu, L.Linear(20, 10)
    optimizer = chainer.optimizers.Adam(0.005)
    if kind == "pipeline":
        pipe = Pipeline(Divisible(*layers), MPI.COMM_WORLD, n_microbatches=2)
        optimizer = pipe.setup(optimizer)
        updater = PipelineUpdater(batches, optimizer, pipe)
        evaluator = PipelineEvaluator(tests, pipe)
    else:
        model = L.Classifier(chainer.Sequential(*layers))
        updater = StandardUpdater(batches, optimizer.setup(model))
        evaluator = extensions.Evaluator(tests, model)
    evaluator.evaluate = Counted(evaluator.evaluate, last)
    out = os.environ.get("TEST_OUT", "result")
    trainer = Trainer(updater, (n_epochs, "epoch"), out)
    trainer.extend(evaluator, trigger=(n_epochs, "epoch"))
    trainer.run()
    print("behind the trainer")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(os.environ.get("TEST_LAST_EVALUATION", 0)))
