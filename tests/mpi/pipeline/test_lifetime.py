"""What a pipeline holds, and what it leaves behind."""

import gc
import weakref

import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible, Plan
from divisible.communication import communicators
from pipeline import Pipeline, StallError
from tests.support.mpiexec import assert_on_ranks


def stage_of(comm, n=300):
    model = Divisible(L.Linear(n, n), L.Linear(n, n))
    return model.divide(*Plan.uniform(2, comm.size).range(comm.rank))


def many(comm):
    stage = stage_of(comm, 4)
    for _ in range(2100):  # MPICH has 2,048 communicators
        with Pipeline(stage, comm, n_microbatches=2, timeout=20) as pipe:
            pass
    x, t = np.ones((4, 4), np.float32), np.zeros(4, np.int32)
    with Pipeline(stage, comm, n_microbatches=2, timeout=20) as pipe:
        pipe.step(x, t)


@pytest.mark.matrix
def test_many_pipelines_in_one_process():
    assert_on_ranks(2, many)


def many_that_are_dropped(comm):
    """None is closed; those in circles are collected at times of their own."""
    stage = stage_of(comm, 4)
    # Of earlier cases there may be some that are never freed.
    before = len(communicators._held), len(communicators._dropped)
    for i in range(300):
        pipe = Pipeline(stage, comm, n_microbatches=2, timeout=20)
        if i % 2 == comm.rank:
            pipe.itself = pipe
    x, t = np.ones((4, 4), np.float32), np.zeros(4, np.int32)
    pipe.step(x, t)
    most = len(communicators._held) + len(communicators._dropped)
    gc.collect()
    other = weakref.ref(pipe)
    del pipe
    gc.collect()
    assert other() is None
    with Pipeline(stage, comm, n_microbatches=2, timeout=20) as pipe:
        pipe.step(x, t)
    n_dropped = len(communicators._dropped) - before[1]
    assert most - sum(before) < 290 and n_dropped < 10, (before, most, n_dropped)


def test_pipelines_that_python_collects_are_freed():
    assert_on_ranks(2, many_that_are_dropped)


def too_many(comm):
    """The fault is said, and its cure, where MPI has nothing left."""

    class Full(MPI.Intracomm):
        def Idup(self):
            raise MPI.Exception(MPI.ERR_OTHER)

    with pytest.raises(RuntimeError, match=r"Close those .* pipe.close\(\)"):
        Pipeline(stage_of(comm, 4), Full(comm), n_microbatches=2, timeout=20)


def test_what_to_close_is_said():
    assert_on_ranks(1, too_many)


def outputs(comm):
    """The last stage does not keep the outputs of the minibatch."""
    alive = []

    class Watched(L.Linear):
        def forward(self, x):
            y = super().forward(x)
            alive.append(weakref.ref(y))
            most.append(sum(ref() is not None for ref in alive))
            return y

    most = []
    model = Divisible(L.Linear(4, 4), Watched(4, 4))
    stage = model.divide(*Plan.uniform(2, comm.size).range(comm.rank))
    pipe = Pipeline(stage, comm, n_microbatches=16, timeout=20)
    pipe.step(np.ones((32, 4), np.float32), np.zeros(32, np.int32))
    if pipe.is_last:
        assert len(most) == 16 and max(most) <= 2


def test_1f1b_holds_few_outputs():
    assert_on_ranks(2, outputs)


def overwritten(comm):
    """Messages that come after an error do not land in memory used again."""
    stage = stage_of(comm)
    x, t = np.ones((80, 300), np.float32), np.zeros(80, np.int32)
    # What the first step loads may take longer than others are to wait.
    with Pipeline(stage, comm, n_microbatches=2, timeout=60) as pipe:
        pipe.step(x, t)
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=2)
    pipe.step(x, t)
    # Rank 0 comes too late for rank 1, which goes on without the pipeline.
    if comm.rank == 0:
        comm.recv(source=1)
        with pytest.raises(StallError):
            pipe.step(x, t)
        return
    with pytest.raises(StallError):
        pipe.step(x, t)
    del pipe, stage
    gc.collect()
    arrays = [np.full((40, 300), 7, np.float32) for _ in range(20)]
    comm.send(None, dest=0)
    for _ in range(100):
        comm.iprobe()
    assert all((array == 7).all() for array in arrays)


def test_what_was_refused_is_freed():
    """On one rank nothing can be under way."""
    pipe = Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=2)
    with pytest.raises(TypeError, match="t is None"):
        pipe.step(np.ones((4, 4), np.float32), None)
    alive = weakref.ref(pipe)
    del pipe
    gc.collect()
    assert alive() is None


def test_late_messages_overwrite_nothing():
    assert_on_ranks(2, overwritten)
