"""Losses that leave out samples train as the undivided model does, on any schedule."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from mpi4py import MPI

from divisible import Divisible
from mixed_precision import to_float16
from pipeline import Pipeline, PipelineEvaluator
from tests.support.equivalence import STAGES_PER_RANK, assert_close, stages_of_rank
from tests.support.mpiexec import assert_on_ranks

N = 11
_rng = np.random.RandomState(0)
X = _rng.normal(size=(N, 6)).astype(np.float32)
T = np.array([-1, -1, -1, 2, 0, -1, 3, 1, 1, 2, -1], np.int32)


def seen(y, t):
    return F.softmax_cross_entropy(y, t)


def told(y, t):
    n = (t != -1).sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        return F.sum(F.softmax_cross_entropy(y, t, reduce="no")) / n, n


def told_accuracy(y, t):
    counts = t != -1
    hits = (y.array.argmax(axis=1) == t)[counts]
    return hits.sum() / max(1, counts.sum()), counts.sum()


def net(is_tied=True):
    np.random.seed(3)
    model = Divisible(L.Linear(6, 6), F.tanh, L.Linear(6, 6), F.relu, L.Linear(6, 6))
    if is_tied:
        model.tie("/0/W", "/4/W")
    return model


def serial():
    model = net()
    y = model(X)
    loss = seen(y, T)
    model.cleargrads()
    loss.backward()
    return model, {
        "loss": float(loss.array),
        "accuracy": float(F.accuracy(y, T, ignore_label=-1).array),
    }


def stages_for(comm, schedule, model):
    n_stages = comm.size * STAGES_PER_RANK[schedule]
    cuts = np.linspace(0, len(model), n_stages + 1).astype(int)
    numbers = stages_of_rank(comm, n_stages, schedule)
    return [model.divide(*cuts[i : i + 2]) for i in numbers]


def every_schedule(comm):
    whole, expected = serial()
    gradients = {path: param.grad for path, param in whole.namedparams()}
    cases = [(schedule, "never", seen) for schedule in STAGES_PER_RANK]
    cases += [("1f1b", "always", told), ("zb_h1", "except_last", told)]
    cases += [("gpipe", "never", told), ("zb_v", "always", seen)]
    for schedule, recompute, lossfun in cases:
        stages = stages_for(comm, schedule, net())
        options = {"lossfun": lossfun, "accfun": told_accuracy, "timeout": 20}
        options.update(schedule=schedule, recompute=recompute)
        with Pipeline(stages, comm, n_microbatches=4, **options) as pipe:
            for call in (pipe.step, pipe.evaluate):
                result = call(X, T)
                for name in expected:
                    assert_close(result[name], expected[name])
            for stage in stages:
                for path, param in stage.namedparams():
                    assert_close(param.grad, gradients[path], 1e-4, 1e-6, schedule)


def test_every_schedule():
    assert_on_ranks(2, every_schedule)


def float16(comm):
    """Sums are corrected before they are rounded, and so do not depend on the cut."""
    gradients = []
    for each in (comm, MPI.COMM_SELF):
        stages = stages_for(each, "1f1b", to_float16(net()))
        options = {"lossfun": told, "accfun": None, "loss_scale": 64, "timeout": 20}
        with Pipeline(stages, each, n_microbatches=4, **options) as pipe:
            pipe.step(X, T)
        gradients.append(dict(stages[0].namedparams()))
    mine, alone = gradients
    whole, _ = serial()
    expected = dict(whole.namedparams())
    for path, param in mine.items():
        if path.endswith("/b") or path == "/2/W":
            np.testing.assert_array_equal(param.grad, alone[path].grad)
        assert_close(param.grad / 64, expected[path].grad, 2e-2, 2e-3, path)


def test_float16():
    assert_on_ranks(2, float16)


def evaluator(comm):
    _, expected = serial()
    samples = chainer.datasets.TupleDataset(X, T)
    for lossfun in (seen, told):
        iterator = chainer.iterators.SerialIterator(
            samples, 2, repeat=False, shuffle=False
        )
        (stage,) = stages_for(comm, "1f1b", net())
        options = {"lossfun": lossfun, "accfun": told_accuracy, "timeout": 20}
        with Pipeline(stage, comm, n_microbatches=3, **options) as pipe:
            for at_once in (1, 2):
                result = PipelineEvaluator(iterator, pipe, at_once=at_once)()
                for name in expected:
                    assert_close(result[f"main/{name}"], expected[name])


def test_evaluator():
    assert_on_ranks(2, evaluator)


def warning(comm):
    def masked(y, t):
        return told(y, t)[0]

    (stage,) = stages_for(comm, "1f1b", net())
    with Pipeline(stage, comm, n_microbatches=2, lossfun=masked, timeout=20) as pipe:
        pipe.step(X, T)
        pipe.step(X, T)


def test_one_rank_warns_once():
    output = assert_on_ranks(2, warning)
    assert output.count("masked, seems to leave out samples") == 1, output
