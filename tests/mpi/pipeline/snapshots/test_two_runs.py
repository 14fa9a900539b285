"""Several runs that save into one directory at the same time."""

import contextlib
import itertools
import os
import random
import re
import signal
import sys
import time
import warnings

import chainer
import chainer.links as L
import pytest
from mpi4py import MPI

from divisible import Divisible
from pipeline import Pipeline, Snapshot, latest_snapshot, save_snapshot
from tests.support.mpiexec import assert_on_ranks, worker
from tests.support.processes import running


def make():
    stage = Divisible(L.Linear(64, 64))
    optimizer = chainer.optimizers.SGD().setup(stage)
    return Pipeline(stage, MPI.COMM_SELF, 1), optimizer


def save_together(comm, folder, n_rounds):
    """Each rank is a run of its own; the last one looks while the others save."""
    pipe, optimizer = make()
    # None is damaged, to whoever looks.
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "another run")

    def save(name, **options):
        save_snapshot(f"{folder}/{name}", pipe, optimizer, **options)

    save(f"best_{comm.rank}")
    if comm.rank == 0:
        save("best")
    for i in range(n_rounds):
        comm.Barrier()
        if comm.rank < comm.size - 1:
            save("best", values={"round": i})
            save(f"iter_{comm.size * i + comm.rank}", n_retains=1)
        else:
            for _ in range(3):
                assert latest_snapshot(folder, "best") is not None
        comm.Barrier()
        snapshot = Snapshot.open(latest_snapshot(folder, "best"))
        assert snapshot.path.name == "best" and snapshot.values == {"round": i}
        # Each removes what is older than its own.
        assert latest_snapshot(folder, "iter_*") is not None


@pytest.mark.parametrize("n_rounds", [10, pytest.param(500, marks=pytest.mark.matrix)])
def test_the_same_name_at_once(tmp_path, n_rounds):
    assert_on_ranks(3, save_together, str(tmp_path), n_rounds, timeout=300)
    kept = [path.name for path in tmp_path.glob("best*")]
    assert sorted(kept) == ["best", "best_0", "best_1", "best_2"]


def save_for_ever(comm, folder):
    """At once, and in the background."""
    pipe, optimizer = make()
    print(f"process {os.getpid()} saves", flush=True)
    for i in itertools.count():
        options = {"background": i % 3 > 0}
        save_snapshot(f"{folder}/best", pipe, optimizer, **options)
        save_snapshot(f"{folder}/iter_{i}", pipe, optimizer, n_retains=2, **options)


@pytest.mark.matrix
def test_some_are_killed_while_others_save(tmp_path):
    """A whole snapshot is found at every moment, and left-overs do not pile up."""
    chance = random.Random(os.urandom(4).hex())
    command = [sys.executable, *worker(save_for_ever, str(tmp_path))]
    with contextlib.ExitStack() as stack:

        def start():
            program = stack.enter_context(running(command))
            return program, int(
                program.wait_for(
                    lambda: re.search(r"process (\d+) saves", program.output), 20
                )[1]
            )

        programs = [start() for _ in range(3)]
        programs[0][0].wait_for(lambda: latest_snapshot(tmp_path, "iter_*"), 20)
        for _ in range(20):
            time.sleep(chance.uniform(0, 0.3))
            program, pid = programs.pop(chance.randrange(3))
            assert program.process.poll() is None, program.output
            os.kill(pid, signal.SIGKILL)
            program.wait(10)
            for pattern in ("best", "iter_*"):
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    assert latest_snapshot(tmp_path, pattern) is not None
            programs.append(start())
    # What the last three were doing, and two of each that they keep.
    assert len(list(tmp_path.iterdir())) < 3 * 4, list(tmp_path.iterdir())
