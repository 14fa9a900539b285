"""How many modules a save passes, and what a refused one leaves on disk."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible
from pipeline import Pipeline, save_snapshot
from tests.support.walk import walk

X, T = np.ones((4, 4), np.float32), np.zeros(4, np.int32)
#: The most modules and calls of three layers on one rank. A feature that a run does not
#: use adds none. Three modules find the dtype of products, which a snapshot has always.
MOST_MODULES, MOST_CALLS = 28, 730


def test_a_save_passes_few_modules(tmp_path):
    model = Divisible(L.Linear(4, 4), F.relu, L.Linear(4, 3))
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=2)
    for number in range(3):
        pipe.step(X, T)
        optimizer.update()
        passed = walk(save_snapshot, tmp_path / str(number), pipe, optimizer)
    assert len(passed.modules) <= MOST_MODULES, passed
    assert passed.calls <= MOST_CALLS, passed


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_pipeline_that_saves_no_more_leaves_no_files(tmp_path, has_failed):
    model = Divisible(L.Linear(4, 4), L.Linear(4, 3))
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=2)
    if has_failed:
        with pytest.raises(TypeError):
            pipe.step(X)
    else:
        pipe.close()
    with pytest.raises(RuntimeError, match="make a new"):
        save_snapshot(tmp_path / "1", pipe, optimizer)
    assert [*tmp_path.glob("1*")] == []
