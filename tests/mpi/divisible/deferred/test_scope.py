"""Weights of models that are built in deferred_init, on real ranks."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.initializers import Orthogonal

from divisible import Divisible, Plan, deferred_init
from pipeline import Pipeline
from tests.support.mpiexec import assert_on_ranks

X = np.random.RandomState(0).rand(12, 5).astype(np.float32)
T = np.arange(12, dtype=np.int32) % 3


class Step(chainer.Chain):
    """A recurrent link without what it remembers."""

    def __init__(self):
        super().__init__(gru=L.StatefulGRU(6, 6, init=Orthogonal()))

    def forward(self, x):
        self.gru.reset_state()
        return self.gru(x)


def build():
    with deferred_init(seed=7):
        return Divisible(
            L.Linear(5, 6, initialW=lambda array: array.fill(np.random.rand())),
            F.relu,
            L.Linear(None, 6),
            F.dropout,
            Step(),
            L.Linear(None, 6, nobias=True),
            L.BatchNormalization(6),
            L.Linear(None, 3),
        )


def weights_are_those_of_one_rank(comm):
    np.random.seed(comm.rank)
    np.random.rand(comm.rank)
    model = build()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    pipe = Pipeline(stage, comm, n_microbatches=1)
    # Sizes are found at the first call.
    pipe.evaluate(X, T)
    mine = {path: param.array for path, param in stage.namedparams()}
    found = comm.gather(mine)
    if comm.rank == 0:
        together = {path: array for part in found for path, array in part.items()}
        whole = build().divide()
        whole(X)
        expected = {path: param.array for path, param in whole.namedparams()}
        assert together.keys() == expected.keys()
        for path, array in together.items():
            np.testing.assert_array_equal(array, expected[path], err_msg=path)


@pytest.mark.parametrize("n_ranks", [1, 3, 4])
def test_weights_on_any_number_of_ranks(n_ranks):
    assert_on_ranks(n_ranks, weights_are_those_of_one_rank)
