"""A learning rate that warms up and then follows a cosine, on a pipeline."""

import math

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions
from mpi4py import MPI
from sklearn.datasets import load_digits

from divisible import Divisible, Plan, deferred_init
from pipeline import Pipeline, PipelineUpdater

N_ITERATIONS, N_WARMUP, PEAK = 60, 15, 0.2


class Net(Divisible):
    def __init__(self):
        for n_in in (64, 100):
            self.append(L.Linear(n_in, 100))
            self.append(F.relu)
        self.append(L.Linear(100, 10))


def learning_rate(iteration):
    """Rises in a line to its peak, and falls by half a cosine to zero."""
    if iteration < N_WARMUP:
        return PEAK * (iteration + 1) / N_WARMUP
    done = (iteration - N_WARMUP) / (N_ITERATIONS - N_WARMUP)
    return PEAK * (1 + math.cos(math.pi * done)) / 2


def set_rate(trainer):
    """Sets the rate of the next update; the same on every rank."""
    optimizer = trainer.updater.get_optimizer("main")
    optimizer.lr = learning_rate(trainer.updater.iteration)


def digits():
    x, t = load_digits(return_X_y=True)
    return chainer.datasets.TupleDataset((x / 16).astype("f"), t.astype("i"))


def train(updater):
    """Runs a trainer, as a serial script does."""
    trainer = training.Trainer(updater, (N_ITERATIONS, "iteration"))
    every, often = (1, "iteration"), (10, "iteration")
    trainer.extend(set_rate, trigger=every, call_before_training=True)
    trainer.extend(extensions.observe_lr(), trigger=often)
    trainer.extend(extensions.LogReport(trigger=often, filename=None))
    trainer.extend(extensions.PrintReport(["iteration", "lr", "main/loss"]))
    trainer.run()
    return trainer


if __name__ == "__main__":
    comm = MPI.COMM_WORLD
    with deferred_init(seed=0):
        model = Net()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    optimizer = chainer.optimizers.MomentumSGD().setup(stage)
    np.random.seed(0)
    iterator = chainer.iterators.SerialIterator(digits(), 100)
    pipe = Pipeline(stage, comm, n_microbatches=4)
    train(PipelineUpdater(iterator, optimizer, pipe))
