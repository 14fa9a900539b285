"""What fails in a thread, or in a worker process, ends all ranks."""

import subprocess
import sys
import threading

import chainer
import numpy as np
import pytest
from chainer import iterators

from divisible import Divisible, Plan
from pipeline import Pipeline, PipelineUpdater
from tests.support.matrix import matrix
from tests.support.mpiexec import mpiexec, on_ranks, worker
from tests.support.processes import ROOT

DEADLINE = 20
PATIENCE = 1000


class Bad(chainer.dataset.DatasetMixin):
    """One sample cannot be read."""

    def __len__(self):
        return 20

    def get_example(self, i):
        if i == 13:
            raise KeyError("the user's own")
        return np.ones(4, np.float32), np.int32(i % 3)


class Loading(iterators.SerialIterator):
    """Waits for a thread that has failed."""

    def __next__(self):
        if self.current_position == 8:
            threading.Thread(target=lambda: self.dataset[13], name="loader").start()
            threading.Event().wait()
        return super().__next__()

    next = __next__


def train(comm, kind):
    model = Divisible(chainer.links.Linear(4, 4), chainer.links.Linear(4, 3))
    stage = model.divide(*Plan.uniform(2, comm.size).range(comm.rank))
    optimizer = chainer.optimizers.SGD(0.01).setup(stage)
    iterator = None
    if comm.rank == 0:
        if kind == "loader":
            iterator = Loading(Bad(), 4, shuffle=False)
        else:
            iterator = iterators.MultiprocessIterator(
                Bad(), 4, shuffle=False, n_processes=2
            )
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=PATIENCE)
    updater = PipelineUpdater(iterator, optimizer, pipe)
    while True:
        updater.update()


@pytest.mark.parametrize(
    "kind, n_ranks",
    [
        ("loader", 2),
        *matrix(("prefetch_loop", 1), ("prefetch_loop", 2), ("loader", 1)),
    ],
)
def test_an_exception_in_a_thread(kind, n_ranks):
    result = on_ranks(n_ranks, train, kind, timeout=DEADLINE)
    assert result.returncode == 1, result.stdout
    whom = "ends all ranks" if n_ranks > 1 else "ends"
    who = f"rank 0 of {n_ranks} on "
    assert who in result.stdout
    assert f"failed in thread '{kind}' and {whom}:" in result.stdout
    assert result.stdout.count(who) == 1, result.stdout
    assert 'KeyError: "the user\'s own"' in result.stdout


SPAWNING = """
import multiprocessing
from mpi4py import MPI
from tests.mpi.pipeline.test_threads import train

if __name__ == "__main__":
    multiprocessing.set_start_method({!r})
    train(MPI.COMM_WORLD, "process")
"""


@pytest.mark.parametrize(
    "method", ["spawn", pytest.param("forkserver", marks=pytest.mark.matrix)]
)
def test_workers_that_mpi_ends(method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SPAWNING.format(method))
    result = mpiexec(2, [script], timeout=DEADLINE, env={"PYTHONPATH": str(ROOT)})
    assert result.returncode == 1, result.stdout
    assert f"The start method {method!r} lets each worker import" in result.stdout
    assert "multiprocessing.set_start_method('fork')" in result.stdout


EARLY = """
import sys
import pipeline
{}
if int({}) == 1:
    raise KeyError("the user's own")
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.parametrize(
    "first, rank",
    [
        ("from mpi4py import MPI", "MPI.COMM_WORLD.rank"),
        # The others wait in the start of MPI.
        ("from divisible.communication.launchers import launch", "launch().rank"),
    ],
)
def test_an_exception_before_there_is_a_pipeline(first, rank):
    result = mpiexec(2, ["-c", EARLY.format(first, rank)], timeout=DEADLINE)
    assert result.returncode != 0
    assert result.stdout.count("rank 1 of 2 on ") == 1, result.stdout
    assert result.stdout.count("ends all ranks") == 1
    assert 'KeyError: "the user\'s own"' in result.stdout


def is_missing(comm):
    model = Divisible(chainer.links.Linear(4, 4), chainer.links.Linear(4, 3))
    # One that starts late is not one that is missing.
    comm.Barrier()
    if comm.rank == 1:
        threading.Event().wait()
    stage = model.divide(*Plan.uniform(2, 2).range(min(comm.rank, 1)))
    Pipeline(stage, comm, n_microbatches=2, timeout=3)


def test_who_waits_names_the_rank_that_is_missing():
    argv = worker(is_missing)
    result = mpiexec(3, argv, timeout=DEADLINE)
    assert result.returncode == 1, result.stdout
    message = "waited 3 s for rank 1 to start (ranks 0 and 2 are here)"
    assert message in result.stdout


SIDE_EFFECTS = """
import sys, threading
hooks = sys.excepthook, threading.excepthook
import pipeline
assert hooks == (sys.excepthook, threading.excepthook)
assert "mpi4py" not in sys.modules
assert "divisible.communication.aborting" not in sys.modules
"""


def test_without_a_launcher_an_import_does_nothing():
    command = [sys.executable, "-c", SIDE_EFFECTS]
    subprocess.run(command, cwd=ROOT, timeout=100, check=True)
