"""Replicas to which a minibatch gives no samples, beside serial Chainer."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from data_parallel import Grid
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
    return grid, Pipeline(stage, grid, n_microbatches, timeout=20)


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
