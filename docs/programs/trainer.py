"""Chainer's trainer on a pipeline, with snapshots."""

import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions
from mpi4py import MPI
from sklearn.datasets import load_digits

from divisible import Divisible, deferred_init
from pipeline import (
    Pipeline,
    PipelineEvaluator,
    PipelineUpdater,
    StopOnSignal,
    snapshot,
)

parser = argparse.ArgumentParser()
parser.add_argument("--epoch", type=int, default=3)
parser.add_argument("--out", default="result")
parser.add_argument("--resume", help="'auto', or the path of a snapshot")
args = parser.parse_args()


class Net(Divisible):
    def __init__(self):
        for n_in, n_out in [(64, 200), (200, 200), (200, 200)]:
            self.append(L.Linear(n_in, n_out))
            self.append(F.relu)
        self.append(L.Linear(200, 10))


comm = MPI.COMM_WORLD
with deferred_init(seed=0):
    model = Net()
pipe = Pipeline(model, comm, n_microbatches=4)
optimizer = pipe.setup(chainer.optimizers.Adam())

np.random.seed(0)
x, t = load_digits(return_X_y=True)
digits = chainer.datasets.TupleDataset((x / 16).astype("f"), t.astype("i"))
train, test = chainer.datasets.split_dataset_random(digits, 1500, seed=0)
train_iter = chainer.iterators.SerialIterator(train, 100)
test_iter = chainer.iterators.SerialIterator(test, 100, repeat=False, shuffle=False)

updater = PipelineUpdater(train_iter, optimizer, pipe)
trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
trainer.extend(PipelineEvaluator(test_iter, pipe))
trainer.extend(extensions.LogReport())
columns = ["epoch", "main/loss", "validation/main/loss", "validation/main/accuracy"]
trainer.extend(extensions.PrintReport(columns))
trainer.extend(StopOnSignal())
trainer.extend(snapshot(n_retains=2, resume=args.resume))
trainer.run()
