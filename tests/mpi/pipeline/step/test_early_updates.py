"""Streamed layers that a step updates while their gradients come."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.optimizer_hooks import GradientClipping, WeightDecay

from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible, deferred_init
from divisible.streaming import Streamed
from divisible.streaming.parameter import GRADIENT
from pipeline import Pipeline, PipelineUpdater, rebalance
from tests.support.mpiexec import assert_on_ranks

OPTIMIZERS = {
    "SGD": lambda: chainer.optimizers.SGD(0.1),
    "Adam": chainer.optimizers.Adam,
    "with decay": lambda: chainer.optimizers.MomentumSGD(0.1),
}


def model_of(recompute=False):
    with deferred_init(seed=3):
        layers = [
            Streamed(L.Linear(48, 40), activation=F.relu, segment=7),
            lambda x: F.reshape(x, (len(x), 10, 2, 2)),
            Streamed(L.Convolution2D(10, 6, 2, pad=1), activation=F.tanh, segment=4),
            Streamed(L.Linear(54, 30), segment=30),
            L.Linear(30, 5),
        ]
        model = Divisible()
        for number, layer in enumerate(layers):
            model.append(layer, recompute=recompute and number > 2)
    return model


class Run:
    """A pipeline with its optimizer."""

    def __init__(self, comm, schedule, n_microbatches, name, recompute=False):
        cuts = [[0, 5], [0, 2, 5]][comm.size - 1]
        self.stage = model_of(recompute).divide(*cuts[comm.rank : comm.rank + 2])
        self.optimizer = OPTIMIZERS[name]().setup(self.stage)
        if name == "with decay":
            for param in self.stage.params():
                param.update_rule.add_hook(WeightDecay(0.01))
        self.pipe = Pipeline(
            self.stage, comm, n_microbatches=n_microbatches, schedule=schedule
        )

    def steps(self, n, seed, early):
        random, losses = np.random.RandomState(seed), []
        given = self.optimizer if early else None
        for _ in range(n):
            x = random.randn(14, 48).astype("f")
            t = random.randint(0, 5, 14).astype("i")
            t[random.randint(14)] = -1
            losses.append(self.pipe.step(x, t, given)["loss"])
            self.optimizer.update()
        return losses

    def streamed(self):
        return [p for p in self.stage.params() if getattr(p, "is_streamed", False)]

    def assert_equal(self, other):
        for mine, its in zip(self.stage.params(), other.stage.params()):
            np.testing.assert_array_equal(mine.array, its.array)
            assert mine.update_rule.t == its.update_rule.t
            for key, state in (its.update_rule.state or {}).items():
                np.testing.assert_array_equal(mine.update_rule.state[key], state)


def updates_alike(comm, schedule, n_microbatches, name, recompute=False):
    arguments = comm, schedule, n_microbatches, name, recompute
    early, late = Run(*arguments), Run(*arguments)
    assert early.steps(5, 0, True) == late.steps(5, 0, False)
    early.assert_equal(late)
    assert early.streamed()
    for param in early.streamed():
        assert np.isnan(param.grad).all() and param.grad.shape == param.shape
        # Where there is one microbatch, nothing of it was ever in a file.
        assert (GRADIENT in param._files) == (n_microbatches > 1)
    # One and the other may take turns.
    assert early.steps(2, 1, False) == late.steps(2, 1, True)
    early.assert_equal(late)


@pytest.mark.parametrize(
    "name, n_microbatches",
    [
        ("Adam", 3),
        ("SGD", 1),
        ("with decay", 3),
        pytest.param("Adam", 1, marks=pytest.mark.matrix),
        pytest.param("SGD", 3, marks=pytest.mark.matrix),
        pytest.param("with decay", 1, marks=pytest.mark.matrix),
    ],
)
def test_one_rank_updates_bit_for_bit_as_after_the_step(name, n_microbatches):
    assert_on_ranks(1, updates_alike, "gpipe", n_microbatches, name)


@pytest.mark.parametrize(
    "schedule, recompute",
    [
        ("gpipe", False),
        ("1f1b", True),
        ("zb_h1", False),
        pytest.param("gpipe", True, marks=pytest.mark.matrix),
        pytest.param("1f1b", False, marks=pytest.mark.matrix),
        pytest.param("zb_h1", True, marks=pytest.mark.matrix),
    ],
)
def test_stages_update_bit_for_bit_as_after_the_step(schedule, recompute):
    assert_on_ranks(2, updates_alike, schedule, 3, "Adam", recompute)


def looks(comm):
    run, other = (Run(comm, "1f1b", 2, "SGD") for _ in range(2))
    for each in (run, other):
        each.optimizer.add_hook(GradientClipping(0.1))
        each.pipe.global_hooks(each.optimizer)
    assert run.steps(3, 0, True) == other.steps(3, 0, False)
    run.assert_equal(other)
    for param in run.streamed():
        assert np.isfinite(param.grad).all() and param.grad.any()


def test_a_hook_sees_gradients():
    assert_on_ranks(2, looks)


def one_forgets(comm):
    run = Run(comm, "1f1b", 2, "SGD")
    x, t = np.ones((4, 48), "f"), np.zeros(4, "i")
    run.steps(1, 0, True)
    run.pipe.step(x, t, run.optimizer)
    with pytest.raises(RuntimeError, match="^the gradients of minibatch 2 have not"):
        rebalance(run.pipe, run.optimizer, [0, 5], model_of)
    with pytest.raises(RuntimeError, match=r"optimizer.update\(\), .* was not called"):
        run.pipe.step(x, t, run.optimizer)


def test_a_step_without_the_update_of_the_last_one_is_refused():
    assert_on_ranks(1, one_forgets)


def does_not_know_its_mean(comm):
    def lossfun(y, t):
        return F.sum(F.softmax_cross_entropy(y, t, reduce="no")) / len(t), len(t)

    losses = []
    for early in (True, False):
        run = Run(comm, "1f1b", 2, "SGD")
        pipe = Pipeline(run.stage, comm, n_microbatches=2, lossfun=lossfun)
        random = np.random.RandomState(0)
        for _ in range(3):
            x, t = random.randn(7, 48).astype("f"), np.arange(7, dtype="i") % 5
            losses.append(pipe.step(x, t, run.optimizer if early else None)["loss"])
            if early:
                assert not any(param.is_updated for param in run.streamed())
            run.optimizer.update()
    assert losses[:3] == losses[3:]


def test_gradients_that_may_be_corrected_are_complete_first():
    assert_on_ranks(2, does_not_know_its_mean)


def is_scaled(comm):
    """Rules of Chainer divide by the scale, which parameters learn after the step."""
    losses = []
    for loss_scale in None, 256.0:
        run = Run(comm, "1f1b", 3, "SGD")
        run.pipe = Pipeline(run.stage, comm, n_microbatches=3, loss_scale=loss_scale)
        losses.append(run.steps(3, 0, True))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


def test_scaled_gradients_are_complete_first():
    assert_on_ranks(2, is_scaled)


def updater_updates(comm):
    run, other = (Run(comm, "1f1b", 2, "Adam") for _ in range(2))
    random = np.random.RandomState(0)
    x = random.randn(24, 48).astype("f")
    samples = chainer.datasets.TupleDataset(x, np.arange(24, dtype="i") % 5)

    def iterator():
        return chainer.iterators.SerialIterator(samples, 8, shuffle=False)

    updater = PipelineUpdater(iterator(), run.optimizer, run.pipe)
    for minibatch in (slice(0, 8), slice(8, 16), slice(16, 24)):
        updater.update()
        assert all(np.isnan(param.grad).all() for param in run.streamed())
        other.pipe.step(x[minibatch], np.arange(24, dtype="i")[minibatch] % 5)
        other.optimizer.update()
    run.assert_equal(other)


def test_an_updater_gives_its_optimizers():
    assert_on_ranks(2, updater_updates)


def exchanges(comm):
    grid = Grid(comm, 1)
    stage = model_of().divide()
    pipe = Pipeline(stage, grid, n_microbatches=1)
    optimizer = create_multi_node_optimizer(
        chainer.optimizers.SGD(0.1), grid.data, pipeline=pipe
    ).setup(stage)
    x = np.random.RandomState(comm.rank).randn(4, 48).astype("f")
    for _ in range(2):
        pipe.step(x, np.arange(4, dtype="i"), optimizer)
        optimizer.update()
    for param in stage.params():
        assert np.isfinite(param.grad).all()
        np.testing.assert_array_equal(grid.data.bcast(param.array), param.array)


def test_what_replicas_exchange_is_complete_first():
    assert_on_ranks(2, exchanges)


def refuses(comm):
    run = Run(comm, "1f1b", 1, "SGD")
    x, t = np.ones((4, 48), "f"), np.zeros(4, "i")
    with pytest.raises(TypeError, match="must be a chainer.Optimizer, not str"):
        run.pipe.step(x, t, "SGD")


def test_no_optimizer_is_refused():
    assert_on_ranks(1, refuses)
