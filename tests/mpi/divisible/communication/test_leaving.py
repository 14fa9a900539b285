"""A rank that leaves by ``os._exit`` ends neither the others nor the job in silence."""

import os

import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from divisible.communication.flight_files import VARIABLE
from pipeline import Pipeline
from tests.support.mpiexec import on_ranks

# From the start of Python on; what a pipeline waits is longer.
DEADLINE = 20
PATIENCE = 1000


def train(comm, leaving):
    model = Divisible(*(L.Linear(4, 4) for _ in range(comm.size)))
    stage = model.divide(comm.rank, comm.rank + 1)
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=PATIENCE)
    for i in range(6):
        if i == 3 and comm.rank == leaving:
            os._exit(0)
        pipe.step(np.ones((6, 4), np.float32), np.zeros(6, np.int32))
    child = os.fork()
    if not child:
        # No rank.
        os._exit(0)
    os.waitpid(child, 0)
    print("rank done", flush=True)
    os._exit(0)


@pytest.mark.parametrize("leaving", [1, pytest.param(0, marks=pytest.mark.matrix)])
def test_who_waits_for_a_rank_that_has_left_says_so(leaving):
    result = on_ranks(3, train, leaving, timeout=DEADLINE)
    assert result.returncode != 0, result.stdout
    words = f"rank {leaving} ended its script after call 3 of the pipeline"
    assert words in result.stdout, result.stdout
    assert "rank done" not in result.stdout


def test_all_ranks_may_leave_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    result = on_ranks(2, train, None, timeout=DEADLINE)
    assert result.returncode == 0, result.stdout
    # As at the end of a script.
    assert not list(tmp_path.iterdir())
    assert result.stdout.count("rank done") == 2
