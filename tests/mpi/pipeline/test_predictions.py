"""Outputs of all samples, whatever axis these are along."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible
from pipeline import Pipeline, predict
from tests.support.equivalence import assert_close
from tests.support.mpiexec import assert_on_ranks

X = np.random.RandomState(0).normal(size=(6, 2, 4)).astype(np.float32)
N_LAYERS = 2


class LastStates(chainer.Chain):
    """Its outputs have samples along the second axis: (layers, samples, units)."""

    def __init__(self):
        super().__init__(lstm=L.NStepLSTM(N_LAYERS, 4, 5, 0.0))

    def forward(self, x):
        hy, cy, _ = self.lstm(None, None, [each for each in x])
        return hy, cy


def make():
    np.random.seed(0)
    return Divisible(lambda x: 2 * x, F.tanh, LastStates())


def iterator(batch):
    return chainer.iterators.SerialIterator(list(X), batch, False, False)


def states(comm):
    with chainer.using_config("train", False):
        expected = [y.array for y in make()(X)]
    bounds = np.linspace(0, 3, comm.size + 1).astype(int)
    # As many samples in a microbatch as there are layers; fewer samples; one part.
    for n_microbatches, axis in ((4, 1), (20, (1, -2)), (1, 1)):
        stage = make().divide(*bounds[comm.rank : comm.rank + 2])
        with Pipeline(stage, comm, n_microbatches=n_microbatches, timeout=20) as pipe:
            outputs = [
                pipe.predict(X, axis),
                predict(pipe, iterator(2), axis=axis),
                predict(pipe, iterator(2), axis=axis, at_once=1),
            ]
            for some in outputs:
                for y, whole in zip(some, expected):
                    assert y.shape == whole.shape
                    assert_close(y, whole, 1e-5, 1e-6)
            message = "the samples along axis 0: if they are along axis 1, use predict"
            with pytest.raises(ValueError, match=message):
                # On every rank, and nobody waits.
                predict(pipe, iterator(2))
        with Pipeline(stage, comm, n_microbatches=n_microbatches, timeout=20) as pipe:
            if n_microbatches > 1:
                with pytest.raises(ValueError, match=message):
                    pipe.predict(X)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_samples_along_the_second_axis(n_ranks):
    assert_on_ranks(n_ranks, states)


def test_rows_of_each_sample_stay():
    model = Divisible(lambda x: x.reshape(-1, 4))
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=3) as pipe:
        np.testing.assert_array_equal(pipe.predict(X), X.reshape(-1, 4))
