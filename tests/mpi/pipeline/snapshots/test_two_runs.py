"""Several runs that would save into one directory at the same time."""

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
from pipeline import (
    Pipeline,
    Snapshot,
    SnapshotError,
    latest_snapshot,
    save_snapshot,
)
from pipeline.snapshots.directories import LOCK
from tests.support.mpiexec import assert_on_ranks, worker
from tests.support.processes import running
from tests.support.snapshot_training import names_in


def make():
    stage = Divisible(L.Linear(64, 64))
    optimizer = chainer.optimizers.SGD().setup(stage)
    return Pipeline(stage, MPI.COMM_SELF, n_microbatches=1), optimizer


def save_together(comm, folder, n_rounds):
    """Each rank is a run of its own; the last one looks while one saves."""
    pipe, optimizer = make()
    # None is damaged, to whoever looks.
    warnings.simplefilter("error")

    def save(name, **options):
        save_snapshot(f"{folder}/{name}", pipe, optimizer, **options)

    if comm.rank == 0:
        save("best", values={"round": -1})
    for i in range(n_rounds):
        comm.Barrier()
        if comm.rank == 0:
            save("best", values={"round": i})
            save(f"iter_{i}", n_retains=1)
        elif comm.rank < comm.size - 1:
            with pytest.raises(SnapshotError, match="another run saves snapshots in"):
                save(f"iter_{i}", values={"round": -2}, background=i % 2)
        else:
            for _ in range(3):
                assert latest_snapshot(folder, pattern="best") is not None
        comm.Barrier()
        snapshot = Snapshot.open(latest_snapshot(folder, pattern="best"))
        assert snapshot.path.name == "best" and snapshot.values == {"round": i}
        assert latest_snapshot(folder, pattern="iter_*").name == f"iter_{i}"


@pytest.mark.parametrize("n_rounds", [10, pytest.param(500, marks=pytest.mark.matrix)])
def test_a_second_run_is_refused_and_does_no_harm(tmp_path, n_rounds):
    assert_on_ranks(3, save_together, str(tmp_path), n_rounds, timeout=300)
    assert names_in(tmp_path) == ["best", f"iter_{n_rounds - 1}"]


def save_for_ever(comm, folder):
    """At once, and in the background, as soon as no other run does."""
    pipe, optimizer = make()
    print(f"process {os.getpid()} saves", flush=True)
    for i in itertools.count():
        options = {"background": i % 3 > 0}
        try:
            save_snapshot(f"{folder}/best", pipe, optimizer, **options)
            save_snapshot(f"{folder}/iter_{i}", pipe, optimizer, n_retains=2, **options)
        except SnapshotError as error:
            assert "another run saves" in str(error)
            time.sleep(0.01)


@pytest.mark.matrix
def test_some_are_killed_while_others_wait(tmp_path):
    """A complete snapshot is found at every moment, and left-overs do not pile up."""
    chance = random.Random(os.urandom(4).hex())
    command = [sys.executable, *worker(save_for_ever, str(tmp_path))]
    n_saving = set()
    with contextlib.ExitStack() as stack:

        def start():
            program = stack.enter_context(running(command))
            found = program.wait_for(
                lambda: re.search(r"process (\d+) saves", program.output), 20
            )
            return program, int(found[1])

        programs = [start() for _ in range(3)]
        programs[0][0].wait_for(lambda: latest_snapshot(tmp_path, pattern="iter_*"), 20)
        for _ in range(20):
            time.sleep(chance.uniform(0, 0.3))
            n_saving.add((tmp_path / LOCK).read_text())
            program, pid = programs.pop(chance.randrange(3))
            assert program.process.poll() is None, program.output
            os.kill(pid, signal.SIGKILL)
            program.wait(10)
            for pattern in ("best", "iter_*"):
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    assert latest_snapshot(tmp_path, pattern=pattern) is not None
            programs.append(start())
    # Others have gone on where one was killed.
    assert len(n_saving) > 2
    # What the last one was doing, and two of each that they keep.
    assert len(names_in(tmp_path)) < 8, names_in(tmp_path)
