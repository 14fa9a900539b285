"""Losses that take no targets, on any cut, equal to the serial script's."""

import os

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import Trainer
from mpi4py import MPI

from data_parallel import Grid, ReplicaIterator, create_multi_node_optimizer
from divisible import Divisible, Plan
from pipeline import Pipeline, PipelineEvaluator, PipelineUpdater
from tests.support.equivalence import assert_close
from tests.support.mpiexec import assert_on_ranks

SIZES = [12, 12, 7, 3, 12]


class TwoHeads(chainer.Chain):
    def __init__(self):
        super().__init__(a=L.Linear(5, 3), b=L.Linear(5, 3))

    def forward(self, h):
        return self.a(h), self.b(h)


def build(two=False):
    np.random.seed(2)
    last = TwoHeads() if two else L.Linear(5, 3)
    return Divisible(L.Linear(4, 6), F.tanh, L.Linear(6, 5), F.sigmoid, last)


def spread(y):
    return F.mean(F.square(y))


def told(y):
    return F.sum(F.square(y)) / len(y), len(y)


def product(*outputs):
    a, b = outputs
    return F.mean(F.square(a - b) + a)


LOSSES = {"spread": spread, "told": told, "product": product}


def minibatches():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, 4)).astype(np.float32) for n in SIZES]


def serially(name):
    model = build(name == "product")
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    losses = []
    for x in minibatches():
        y = model(x)
        loss = LOSSES[name](*(y if isinstance(y, tuple) else (y,)))
        loss = loss[0] if isinstance(loss, tuple) else loss
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(float(loss.array))
    return losses, {path: param.array for path, param in model.namedparams()}


def equal_to_serial(comm, name, schedule):
    expected, weights = serially(name)
    model = build(name == "product")
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(stage)
    losses = []
    options = {"lossfun": LOSSES[name], "accfun": None, "timeout": 30}
    with Pipeline(stage, comm, n_microbatches=4, schedule=schedule, **options) as pipe:
        assert not pipe.internals.loss.needs_targets
        for x in minibatches():
            losses.append(pipe.step(x if pipe.is_first else None)["loss"])
            optimizer.update()
        first = minibatches()[0]
        evaluated = pipe.evaluate(first if pipe.is_first else None)["loss"]
    assert_close(losses, expected, rtol=1e-5)
    for path, param in stage.namedparams():
        assert_close(param.array, weights[path], rtol=1e-4, atol=1e-6, what=path)
    whole = build(name == "product")
    for path, param in whole.namedparams():
        param.array[...] = weights[path]
    y = whole(first)
    serial = LOSSES[name](*(y if isinstance(y, tuple) else (y,)))
    serial = serial[0] if isinstance(serial, tuple) else serial
    assert_close(evaluated, float(serial.array), rtol=1e-4)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("n, schedule", [(1, "1f1b"), (2, "zb_h1"), (3, "gpipe")])
def test_training_without_targets_equals_the_serial_script(n, schedule, name):
    assert_on_ranks(n, equal_to_serial, name, schedule)


def trained_by_a_trainer(comm, n_pipeline):
    grid = Grid(comm, n_pipeline)
    model = build()
    cut = Plan.uniform(len(model), n_pipeline).range(grid.pipeline.rank)
    stage = model.divide(*cut)
    optimizer = chainer.optimizers.SGD(0.1)
    if grid.n_replicas > 1:
        optimizer = create_multi_node_optimizer(optimizer, grid.data)
    optimizer.setup(stage)
    data = np.concatenate(minibatches()[:2])
    with Pipeline(
        stage, grid, n_microbatches=2, lossfun=spread, accfun=None, timeout=30
    ) as pipe:
        iterators = None, None
        if pipe.is_first:
            make = chainer.iterators.SerialIterator
            iterators = make(data, 8, shuffle=False), make(data, 8, False, False)
            iterators = tuple(ReplicaIterator(each, grid) for each in iterators)
        updater = PipelineUpdater(iterators[0], optimizer, pipe, label_key=None)
        trainer = Trainer(updater, (6, "iteration"), out=os.devnull)
        evaluator = PipelineEvaluator(iterators[1], pipe, label_key=None)
        seen = []
        trainer.extend(evaluator, trigger=(6, "iteration"))
        trainer.extend(
            lambda trainer: seen.append(trainer.observation),
            trigger=(6, "iteration"),
            name="seen",
        )
        trainer.run()
    serial = build()
    update = chainer.optimizers.SGD(0.1).setup(serial)
    for i in range(6):
        loss = spread(serial(data[8 * (i % 3) : 8 * (i % 3) + 8]))
        serial.cleargrads()
        loss.backward()
        update.update()
    weights = dict(serial.namedparams())
    for path, param in stage.namedparams():
        assert_close(param.array, weights[path].array, rtol=1e-4, atol=1e-6, what=path)
    evaluated = seen[0]["validation/main/loss"]
    assert_close(evaluated, float(spread(serial(data)).array), rtol=1e-4)


@pytest.mark.parametrize("n, n_pipeline", [(2, 2), (4, 2)])
def test_a_trainer_reads_samples_without_targets(n, n_pipeline):
    assert_on_ranks(n, trained_by_a_trainer, n_pipeline)


def test_a_loss_with_targets_needs_them():
    model, x = build(), minibatches()[0]
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=2) as pipe:
        assert pipe.internals.loss.needs_targets
        with pytest.raises(TypeError, match="t is None on rank 0"):
            pipe.step(x)
    model = build()
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=2, lossfun=spread) as pipe:
        # F.accuracy does.
        with pytest.raises(TypeError, match="t is None on rank 0"):
            pipe.step(x)
        iterator = chainer.iterators.SerialIterator(x, 4)
        optimizer = chainer.optimizers.SGD().setup(model)
        with pytest.raises(ValueError, match="accfun takes more than outputs"):
            PipelineUpdater(iterator, optimizer, pipe, label_key=None)
