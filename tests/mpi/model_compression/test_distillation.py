"""A pipeline whose model learns from a teacher in another pipeline."""

import os

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import Trainer
from mpi4py import MPI

from divisible import Divisible, Plan
from model_compression import Compress, CompressionPlan, Distillation, Prune
from pipeline import Pipeline, PipelineEvaluator, PipelineUpdater
from tests.support.equivalence import assert_close, stages_of_rank
from tests.support.mpiexec import assert_on_ranks

PLAN = CompressionPlan(
    [Prune("magnitude", layers="Linear", to=0.7, end=(8, "iteration"), steps=4)]
)
N_STEPS, BATCH = 10, 8


def build(seed, dropout=0.0):
    np.random.seed(seed)
    layers = [L.Linear(6, 12), F.tanh, L.Linear(12, 12), F.relu, L.Linear(12, 5)]
    # The teacher says what it says without its dropout.
    return Divisible(*layers, lambda x: F.dropout(x, dropout))


def samples():
    rng = np.random.default_rng(2)
    t = rng.integers(5, size=N_STEPS * BATCH)
    # Unequally many in the microbatches.
    t[::5] = -1
    x = rng.normal(size=(len(t), 6)).astype(np.float32)
    return x, t.astype(np.int32)


def lossfun():
    return Distillation(weight=0.6, temperature=2.0)


def serially():
    model, teacher = build(0), build(1, dropout=0.5)
    optimizer = chainer.optimizers.Adam(0.02).setup(model)
    compress = Compress(PLAN, optimizer)
    losses = []
    for i, (x, t) in enumerate(zip(*(a.reshape(10, 8, -1) for a in samples()))):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            scores = teacher(x)
        loss, _ = lossfun()(model(x), t[:, 0], scores)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        compress.advance(i + 1, (i + 1) / 10)
        losses.append(float(loss.array))
    x, t = samples()
    with chainer.using_config("train", False):
        losses.append(float(F.softmax_cross_entropy(model(x), t).array))
    return losses, {path: param.array for path, param in model.namedparams()}


class Taught(PipelineUpdater):
    """Asks a teacher about each minibatch."""

    teacher = None
    losses = ()

    def step(self, x, t):
        scores = self.teacher.predict(x)
        result = self.pipeline.step(x, None if t is None else (*t, scores))
        self.losses = *self.losses, result["loss"]
        return result


def learns_as_serially(comm, cuts, schedule, of_teacher):
    expected = serially() if comm.rank == 0 else None
    model, cut = build(0), Plan(cuts)
    numbers = stages_of_rank(comm, cut.n_stages, schedule)
    stages = [model.divide(*cut.range(number)) for number in numbers]
    optimizers = [chainer.optimizers.Adam(0.02).setup(stage) for stage in stages]
    learn = lossfun()
    dense = build(1, dropout=0.5).divide(*Plan(of_teacher).range(comm.rank))
    data = chainer.datasets.TupleDataset(*samples())
    pipe = Pipeline(
        stages,
        comm,
        n_microbatches=3,
        schedule=schedule,
        lossfun=learn,
        accfun=learn.accuracy,
        timeout=30,
    )
    teacher = Pipeline(dense, comm, n_microbatches=2, timeout=30)
    with pipe, teacher:
        iterator = chainer.iterators.SerialIterator(data, BATCH, shuffle=False)
        updater = Taught(iterator, optimizers, pipe)
        updater.teacher = teacher
        trainer = Trainer(updater, (N_STEPS, "iteration"), out=os.devnull)
        trainer.extend(Compress(PLAN, optimizers))
        trainer.run()
        again = chainer.iterators.SerialIterator(data, 16, repeat=False, shuffle=False)
        seen = PipelineEvaluator(again, pipe)()
        here = {k: p.array for stage in stages for k, p in stage.namedparams()}
        said = pipe.internals.gather((here, updater.losses), "compress")
    found = {path: array for theirs, _ in said for path, array in theirs.items()}
    assert len({losses for _, losses in said}) == 1
    if comm.rank == 0:
        losses = *updater.losses, seen["main/loss"]
        np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
        for path, array in found.items():
            np.testing.assert_array_equal(array == 0, expected[1][path] == 0)
            assert_close(array, expected[1][path], atol=1e-5, what=path)


@pytest.mark.parametrize(
    "n, cuts, schedule, of_teacher",
    [
        (2, [0, 2, 6], "1f1b", [0, 4, 6]),
        (2, [0, 1, 3, 4, 6], "zb_v", [0, 3, 6]),
        (3, [0, 2, 4, 6], "zb_h1", [0, 1, 5, 6]),
    ],
)
def test_a_pipeline_learns_from_a_teacher_as_serially(n, cuts, schedule, of_teacher):
    assert_on_ranks(n, learns_as_serially, cuts, schedule, of_teacher)


def test_one_rank_learns_so_too():
    learns_as_serially(MPI.COMM_SELF, [0, 6], "1f1b", [0, 6])
