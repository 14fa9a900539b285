"""A rank that has no memory, files or threads left ends all, and says why."""

import contextlib
import re
import time

import chainer
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from pipeline import Pipeline, save_snapshot, wait_for_snapshot
from tests.support.mpiexec import mpiexec, worker
from tests.support.processes import LOAD
from tests.support.starving import starve

# From the start of Python on; what a pipeline waits is longer.
DEADLINE = 20
PATIENCE = 1000

CAUSES = {
    "memory": "MemoryError|Out of memory",
    "files": "Too many open files",
    "threads": "can't start new thread",
    "stacks": "no thread finds room",
}

# As a script is run, before it has loaded MPI.
EARLY = """
import pipeline
from divisible.communication.launchers import launch
from tests.support.starving import starve
if launch().rank == {0}:
    starve({1!r})
from mpi4py import MPI
"""


class Hungry(chainer.Link):
    of = None

    def forward(self, x):
        if self.of is not None:
            starve(self.of)
        return x


def train(comm, rank, of, when, folder):
    if when == "before" and comm.rank == rank:
        starve(of)
    model = Divisible(L.Linear(4, 4), Hungry(), L.Linear(4, 3), Hungry())
    stage = model.divide(2 * comm.rank, 2 * comm.rank + 2)
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=PATIENCE)
    for i in range(10):
        if i == 3 and comm.rank == rank:
            if when == "between":
                starve(of)
            elif when == "step":
                stage[1].of = of
            else:
                with contextlib.suppress(MemoryError, OSError):
                    starve(of)
        if i == 3 and when.startswith("save"):
            background = when == "save in the background"
            path = f"{folder}/snapshot"
            save_snapshot(path, pipe, optimizer, background=background)
        pipe.step(np.ones((6, 4), np.float32), np.zeros(6, np.int32))
        optimizer.update()
    wait_for_snapshot(pipe)


ORDINARY = [
    (1, "files", "early"),
    (1, "memory", "step"),
    (0, "threads", "before"),
    (1, "stacks", "between"),
]
CASES = [
    pytest.param(*case, marks=() if case in ORDINARY else pytest.mark.matrix)
    for of in CAUSES
    for case in [
        (1, of, "early"),
        (0, of, "before"),
        (1, of, "between"),
        (1, of, "step"),
        (0, of, "save"),
        (0, of, "save in the background"),
    ]
    # To save needs no thread; a rank that has none for the background saves at once.
    if not (of in ("threads", "stacks") and case[-1].startswith("save"))
]


@pytest.mark.parametrize("rank, of, when", CASES)
def test_a_rank_that_has_nothing_left_ends_all(rank, of, when, tmp_path):
    if when == "early":
        argv = ["-c", EARLY.format(rank, of)]
    else:
        argv = worker(train, rank, of, when, str(tmp_path))
    start = time.monotonic()
    result = mpiexec(2, argv, timeout=DEADLINE)
    assert time.monotonic() - start < LOAD * DEADLINE
    assert result.returncode != 0
    assert "rank done" not in result.stdout
    assert "StallError" not in result.stdout
    # The traceback that comes last.
    *_, last = result.stdout.split("ends all ranks:")
    assert re.search(CAUSES[of], last), result.stdout
    assert f"rank {rank} of 2 on " in result.stdout
