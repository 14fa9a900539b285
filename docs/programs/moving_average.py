"""Weights that are averaged while a pipeline trains, and evaluated."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions
from mpi4py import MPI
from sklearn.datasets import load_digits

from divisible import Divisible, Plan, deferred_init
from pipeline import Pipeline, PipelineEvaluator, PipelineUpdater

DECAY = 0.9


class Net(Divisible):
    def __init__(self):
        for n_in in (64, 100):
            self.append(L.Linear(n_in, 100))
            self.append(F.relu)
        self.append(L.Linear(100, 10))


class MovingAverage:
    """A copy of a stage, whose weights are a moving average of the stage's."""

    def __init__(self, stage):
        self.stage, self.average = stage, stage.copy("copy")

    def __call__(self, trainer=None):
        before = [param.array.copy() for param in self.average.params()]
        # Copies the running averages of batch normalization as well.
        self.average.copyparams(self.stage)
        for param, old in zip(self.average.params(), before):
            param.array *= 1 - DECAY
            param.array += DECAY * old


def digits():
    x, t = load_digits(return_X_y=True)
    data = chainer.datasets.TupleDataset((x / 16).astype("f"), t.astype("i"))
    return chainer.datasets.split_dataset(data, 1500)


if __name__ == "__main__":
    comm = MPI.COMM_WORLD
    with deferred_init(seed=0):
        model = Net()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    optimizer = chainer.optimizers.MomentumSGD(0.2).setup(stage)
    moving = MovingAverage(stage)
    pipe = Pipeline(stage, comm, n_microbatches=4)
    averaged = Pipeline(moving.average, comm, n_microbatches=4)

    train, test = digits()
    np.random.seed(0)
    train_iter = chainer.iterators.SerialIterator(train, 100)
    test_iter = chainer.iterators.SerialIterator(test, 100, False, shuffle=False)
    updater = PipelineUpdater(train_iter, optimizer, pipe)
    trainer = training.Trainer(updater, (4, "epoch"))
    # Evaluators have this priority, and are added later.
    first = {"priority": training.PRIORITY_WRITER, "trigger": (1, "iteration")}
    trainer.extend(moving, name="moving_average", **first)
    trainer.extend(PipelineEvaluator(test_iter, pipe), name="own")
    trainer.extend(PipelineEvaluator(test_iter, averaged), name="average")
    trainer.extend(extensions.LogReport(filename=None))
    columns = [f"{name}/main/loss" for name in ("own", "average")]
    trainer.extend(extensions.PrintReport(["epoch", *columns]))
    trainer.run()
