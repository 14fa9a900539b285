"""Replicas to which a minibatch gives no samples, beside serial Chainer."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible
from pipeline import Pipeline
from tests.support.mpiexec import assert_on_ranks

X = np.random.RandomState(0).normal(size=(5, 6)).astype(np.float32)
CUTS = {1: [0, 3], 2: [0, 2, 3]}


def model():
    np.random.seed(0)
    return Divisible(L.Linear(6, 4), F.tanh, TwoOutputs())


class TwoOutputs(chainer.Chain):
    """Samples are along the first axis of one, and the second axis of the other."""

    def __init__(self):
        super().__init__(linear=L.Linear(4, 3))

    def forward(self, x):
        y = self.linear(x)
        return y, F.cast(F.transpose(y), "float64")


def pipeline_on(comm, n_stages, n_microbatches):
    grid = Grid(comm, n_stages)
    cuts = CUTS[n_stages]
    stage = model().divide(*cuts[grid.pipeline.rank : grid.pipeline.rank + 2])
    return grid, Pipeline(stage, grid, n_microbatches=n_microbatches, timeout=20)


def predicts(comm, n_stages):
    grid, pipe = pipeline_on(comm, n_stages, 2)
    expected = [y.array for y in model()(X)]
    with pipe:
        for empty in range(grid.n_replicas):
            x = () if grid.replica == empty else X
            first, second = pipe.predict(x, axis=(0, 1))
            n = 0 if grid.replica == empty else len(X)
            assert (first.dtype, second.dtype) == (np.float32, np.float64)
            assert first.shape == (n, 3) and second.shape == (3, n)
            np.testing.assert_allclose(first, expected[0][:n], 1e-5)
            np.testing.assert_allclose(second, expected[1][:, :n], 1e-5)


@pytest.mark.parametrize("n_stages", [1, 2])
def test_outputs_of_no_samples_have_the_shapes_of_others(n_stages):
    assert_on_ranks(2 * n_stages, predicts, n_stages)


def refuses(comm, axis, x, message):
    grid, pipe = pipeline_on(comm, 1, 1)
    with pytest.raises(ValueError, match=message):
        pipe.predict(X[:1] if grid.replica < x else (), axis=axis)


@pytest.mark.parametrize(
    "axis, n_with_samples, message",
    [
        ((0, 1), 0, "x has no samples in any of the 2 replicas: give"),
        ((0, 2), 1, r"output 1 .* shape \(3, 1\), .* along axis 2: give"),
    ],
)
def test_refusals_are_those_of_all_replicas(axis, n_with_samples, message):
    assert_on_ranks(2, refuses, axis, n_with_samples, message)


class Projection(chainer.Chain):
    """A loss with weights, which get their size at its first call."""

    def __init__(self):
        super().__init__(linear=L.Linear(None, 3, initialW=weights(3, 5)))

    def forward(self, y, t):
        return F.softmax_cross_entropy(self.linear(y), t)


def weights(*shape):
    return np.random.RandomState(sum(shape)).normal(size=shape).astype(np.float32)


def sized_at_first():
    """The same initial weights, whoever sizes the layers."""
    return Divisible(
        L.Linear(None, 4, initialW=weights(4, 6)),
        F.tanh,
        L.Linear(None, 5, initialW=weights(5, 4)),
    )


MINIBATCHES = [(weights(n, 6), np.arange(n, dtype=np.int32) % 3) for n in (1, 7, 1, 4)]


def sizes(comm, n_stages, schedule):
    serial, loss = sized_at_first(), Projection()
    alone = [chainer.optimizers.MomentumSGD(0.1).setup(each) for each in (serial, loss)]
    grid, cuts = Grid(comm, n_stages), CUTS[n_stages]
    stage = sized_at_first().divide(*cuts[grid.pipeline.rank : grid.pipeline.rank + 2])
    mine = Projection()
    pipe = Pipeline(
        stage, grid, n_microbatches=2, schedule=schedule, lossfun=mine, accfun=None
    )
    parts = [stage, mine] if pipe.is_last else [stage]
    optimizers = [
        create_multi_node_optimizer(
            chainer.optimizers.MomentumSGD(0.1), grid.data, pipeline=pipe
        ).setup(part)
        for part in parts
    ]
    with pipe:
        for number, (x, t) in enumerate(MINIBATCHES):
            # In turn the one and the other has all of the odd sample.
            order = slice(None, None, -1) if number else slice(None)
            shares = np.array_split(np.arange(len(x)), grid.n_replicas)[order]
            rows = shares[grid.replica]
            result = pipe.step(x[rows], t[rows]) if len(rows) else pipe.step((), ())
            expected = loss(serial(x), t)
            for each in (serial, loss):
                each.cleargrads()
            expected.backward()
            for optimizer in (*alone, *optimizers):
                optimizer.update()
            assert abs(result["loss"] - float(expected.array)) < 1e-5
    twins = dict(serial.namedparams())
    for path, param in stage.namedparams():
        np.testing.assert_allclose(param.array, twins[path].array, 1e-4, 1e-6)
    if len(parts) > 1:
        np.testing.assert_allclose(mine.linear.W.array, loss.linear.W.array, 1e-4, 1e-6)


@pytest.mark.parametrize("n_stages, schedule", [(1, "1f1b"), (2, "zb_h1")])
def test_layers_get_their_sizes_where_no_sample_calls_them(n_stages, schedule):
    assert_on_ranks(2 * n_stages, sizes, n_stages, schedule)


def draws(comm):
    """What layers draw at random is the same, and so are averages of normalization."""
    grid = Grid(comm, 1)
    stage = Divisible(
        L.Linear(None, 4), L.BatchNormalization(axis=0), L.Linear(None, 3)
    )
    stage = stage.divide()
    pipe = Pipeline(stage, grid, n_microbatches=1)
    optimizer = create_multi_node_optimizer(
        chainer.optimizers.SGD(0.1), grid.data, pipeline=pipe, check_every=1
    ).setup(stage)
    with pipe, warnings.catch_warnings():
        # Unequal weights would be a warning, and rank 0's.
        warnings.simplefilter("error")
        for n in 3, 4:
            is_empty = n == 3 and grid.replica == 0
            share = ((), ()) if is_empty else (weights(n, 6), np.zeros(n, np.int32))
            pipe.step(*share)
            optimizer.update()
    values = [p.array for p in stage.params()]
    values += [stage[1].avg_mean, stage[1].avg_var]
    for theirs in comm.allgather(values):
        for array, other in zip(values, theirs):
            np.testing.assert_array_equal(array, other)


def test_what_first_calls_draw_is_that_of_other_replicas():
    assert_on_ranks(2, draws)
