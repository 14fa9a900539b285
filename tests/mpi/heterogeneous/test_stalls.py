"""A rank that fails, is killed or does not come: the others end, and say why."""

import gc
import os
import re
import signal

import numpy as np
import pytest

from divisible.communication.communicators import announcement
from divisible.communication.errors import StallError
from heterogeneous import RectangularMLP, rectangular_partition
from tests.support.loaded_python import loaded_project
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks, on_ranks, worker
from tests.support.processes import launcher, running

N_RANKS, LATE = 3, 1
DEADLINE, START_UP = 10, 20


def make(comm, timeout):
    partition = rectangular_partition([1, 2, 3], 40, 30, 5, 60)
    return RectangularMLP(40, 30, 5, comm, partition, timeout=timeout)


def data():
    return np.ones((60, 40), "f"), np.zeros((60, 5), "f")


def remap_for_ever(comm):
    """Remaps to and fro; says so when it is under way."""
    mlp = make(comm, 30)
    there, back = mlp.partition, mlp.partition.remade([3, 2, 1])
    for i in range(1_000_000):
        mlp.remap(back)
        mlp.remap(there)
        if i == 3:
            print(f"rank {comm.rank} runs in process {os.getpid()}", flush=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, *matrix(signal.SIGTERM)])
def test_a_rank_that_is_killed_in_a_remapping_ends_all(how):
    command = [launcher(), "-n", str(N_RANKS), *loaded_project()]
    with running([*command, *worker(remap_for_ever)]) as program:

        def pids():
            assert program.process.poll() is None, program.output
            found = re.findall(r"rank (\d) runs in process (\d+)", program.output)
            return len(found) == N_RANKS and {int(r): int(pid) for r, pid in found}

        os.kill(program.wait_for(pids, START_UP)[LATE], how)
        assert program.wait(DEADLINE) != 0
        words = "signal 9|signal 15|SIGKILL|Killed|Terminated"
        assert re.search(words, program.output), program.output


def failing_in_between(comm):
    mlp = make(comm, 30)
    x, t = data()
    mlp.step(x, t)
    if comm.rank == LATE:
        raise KeyError("the user's own")
    mlp.remap(mlp.partition.remade([3, 2, 1]))


def test_an_exception_on_one_rank_ends_all():
    result = on_ranks(N_RANKS, failing_in_between, timeout=START_UP + DEADLINE)
    assert result.returncode != 0
    assert "rank done" not in result.stdout
    assert 'KeyError: "the user\'s own"' in result.stdout


def no_mean(comm):
    partition = rectangular_partition([1, 2, 3], 40, 30, 5, 60)
    mlp = RectangularMLP(
        40, 30, 5, comm, partition, lossfun=lambda h, t: (h - t) ** 2, timeout=30
    )
    with pytest.raises(ValueError, match="it must return the mean over samples"):
        mlp.step(*data())
    with pytest.raises(RuntimeError, match="an earlier call failed on rank"):
        mlp.step(*data())
    for _ in range(2):
        mlp.close()
        with pytest.raises(RuntimeError, match="this network is closed"):
            mlp.gather()
    # Messages of the others may still come, whoever lets it go.
    assert mlp.comm
    # Of tests before.
    gc.collect()
    dropped = announcement().dropped
    del mlp
    gc.collect()
    assert announcement().dropped == dropped


def test_nothing_follows_a_call_that_failed():
    assert_on_ranks(N_RANKS, no_mean)


def not_coming(comm):
    mlp = make(comm, 30)
    x, t = data()
    mlp.step(x, t)
    comm.Barrier()
    # Only where the wait is in vain: what the first step loads may take longer.
    mlp._calls._timeout = 1
    if comm.rank != LATE:
        with pytest.raises(StallError, match="waited . s for rank 1 to call remap"):
            mlp.remap(mlp.partition.remade([3, 2, 1]))
        with pytest.raises(RuntimeError, match="an earlier call failed on rank"):
            mlp.step(x, t)
    comm.Barrier()


def test_who_waits_names_who_is_missing():
    assert_on_ranks(N_RANKS, not_coming)
