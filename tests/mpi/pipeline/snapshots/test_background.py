"""Snapshots that ranks write while they train: the same promises as at once."""

import builtins
import errno
import itertools
import os
import resource
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from divisible import free_memory
from divisible.terminal_text import printable
from pipeline import Snapshot, SnapshotError, latest_snapshot, wait_for_snapshot
from pipeline.snapshots import background as in_background
from pipeline.snapshots import writing
from tests.support.mpiexec import assert_on_ranks, on_ranks
from tests.support.snapshot_training import Run, names_in


class Gate:
    """Lets no file of a snapshot be written before it is opened."""

    def __init__(self, patch):
        self._is_open, write = threading.Event(), writing.write_arrays

        def write_later(path, arrays):
            assert self._is_open.wait(20)
            return write(path, arrays)

        patch.setattr(writing, "write_arrays", write_later)

    def open(self):
        self._is_open.set()


def names(folder):
    """Returns what is there, without what is being written."""
    return [name for name in names_in(folder) if "partial" not in name]


def keep_what_was_there(comm, folder):
    """The state at the call is saved, whatever changes meanwhile."""
    run = Run(comm, "2")
    run.step(0)
    before = run.arrays()
    values = {"losses": [1.0]}
    with pytest.MonkeyPatch.context() as patch:
        gate = Gate(patch)
        run.save(f"{folder}/1", values=values, background=True)
        values["losses"].append(2.0)
        losses = [run.step(i) for i in (1, 2)]
        for stage in run.stages:
            for param in stage.params():
                param.array[...] = 0
        comm.Barrier()
        assert names(folder) == []
        gate.open()
        # The next one waits for the one before.
        run.save(f"{folder}/2", background=True)
        wait_for_snapshot(run.pipe)
    assert names_in(folder) == ["1", "2"]
    assert run.load(f"{folder}/1").values == {"losses": [1.0]}
    after = run.arrays()
    assert all(np.array_equal(after[key], before[key]) for key in before)
    assert [run.step(i) for i in (1, 2)] == losses
    # Loading waits as well.
    run.save(f"{folder}/3", background=True, n_retains=1)
    run.load(f"{folder}/3")
    comm.Barrier()
    assert names_in(folder) == ["3"]


def fails_on_all(comm, call):
    """Returns the error of a call, which is the same on all ranks."""
    with pytest.raises(SnapshotError) as caught:
        call()
    messages = comm.allgather(str(caught.value))
    assert len(set(messages)) == 1, messages
    return messages[0]


def join_own_thread():
    for thread in threading.enumerate():
        if thread.name == "snapshot":
            thread.join(20)


def fail_later(comm, folder):
    run = Run(comm, "2")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    for rank in (0, 1):
        if comm.rank == rank:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2048, unlimited[1]))
        # No UTF-8, but a name for a file.
        name = f"{folder}/\udcff1"
        run.save(name, background=True)
        run.step(0)
        words = fails_on_all(comm, lambda: wait_for_snapshot(run.pipe))
        shown = f"save the snapshot {printable(name)}: rank {rank}: "
        assert shown in words, words
        assert "File too large" in words and names_in(folder) == []
        comm.Barrier()
        # At the next one, which is saved all the same.
        run.save(f"{folder}/2", background=True)
        join_own_thread()
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        comm.Barrier()
        words = fails_on_all(comm, lambda: run.save(f"{folder}/3"))
        assert f"the snapshot {folder}/2: rank {rank}: " in words, words
        comm.Barrier()
        assert names_in(folder) == ["3"]
        comm.Barrier()
        if comm.rank == 0:
            os.rename(f"{folder}/3", f"{folder}/../{rank}")
        comm.Barrier()
    run.step(1)


def fail_anywhere(comm, folder, names_of_calls):
    """Each call of a thread fails once; all ranks know, and lose nothing."""
    run = Run(comm, "2")
    run.save(f"{folder}/old")
    for rank, name in itertools.product((0, 1), names_of_calls):
        for k in itertools.count():
            calls = itertools.count()
            with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if comm.rank == rank:
                    fail_at(patch, FAILING[name], name, k, calls)
                run.save(f"{folder}/new", background=True)
                run.step(k)
                error = None
                try:
                    wait_for_snapshot(run.pipe)
                except SnapshotError as caught:
                    error = str(caught)
            errors = comm.allgather(error)
            assert errors[0] == errors[1], errors
            if error is not None:
                assert f"rank {rank}: " in error and "Input/output error" in error
            there = names(folder)
            assert "old" in there and (error or "new" in there), (there, name, k)
            Snapshot.open(latest_snapshot(folder)).verify()
            if not comm.bcast(next(calls) > k, rank):
                break
            comm.Barrier()
        comm.Barrier()
    run.save(f"{folder}/new", background=True)
    wait_for_snapshot(run.pipe)
    assert names_in(folder) == ["new", "old"]


# What changes or reads the disk.
FAILING = {
    "open": builtins,
    "fsync": os,
    "replace": os,
    "rename": Path,
    "listdir": os,
    "read_text": Path,
    "unlink": Path,
}


def fail_at(patch, owner, name, k, calls):
    function = getattr(owner, name)

    def call(*args, **options):
        if threading.current_thread().name == "snapshot" and next(calls) == k:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return function(*args, **options)

    patch.setattr(owner, name, call)


def differ(comm, folder):
    run = Run(comm, "2")
    words = fails_on_all(
        comm, lambda: run.save(f"{folder}/1", background=comm.rank == 1)
    )
    assert "rank 1 saves in the background, but rank 0 does not" in words
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank == 1:
            patch.setattr(free_memory, "claims", lambda n_bytes: 1 // 0)
        words = fails_on_all(comm, lambda: run.save(f"{folder}/1", background=True))
    assert "rank 1: ZeroDivisionError" in words
    assert names_in(folder) == []


def come_too_late(comm, folder):
    """A rank's disk hangs: the wait has an end, and training goes on."""
    run = Run(comm, "2")
    with pytest.MonkeyPatch.context() as patch:
        gate = Gate(patch)
        if comm.rank == 0:
            gate.open()
        else:
            patch.setattr(in_background, "_SHARE_OF_TIMEOUT", 0.05)
        run.save(f"{folder}/1", background=True)
        run.step(0)
        words = fails_on_all(comm, lambda: wait_for_snapshot(run.pipe))
        assert "rank 1: no files after 1 s" in words, words
        assert names_in(folder) == []
        gate.open()
    run.step(1)
    run.save(f"{folder}/2", background=True)
    wait_for_snapshot(run.pipe)
    assert names_in(folder) == ["2"]


def have_no_room(comm, folder):
    """All write at once then, and rank 0 says so once."""
    for rank, failing in [(0, "claims"), (1, "claims"), (1, "copy"), (1, "thread")]:
        run = Run(comm, "2")
        with pytest.MonkeyPatch.context() as patch:
            if comm.rank == rank and failing == "claims":
                claim = free_memory.Claim("the machine", 9 << 30, 8 << 30)
                patch.setattr(
                    free_memory, "claims", lambda n_bytes, c=claim: {"host": c}
                )
            elif comm.rank == rank:
                where = {
                    "copy": (writing.Writing, "copy_arrays", MemoryError("no room")),
                    "thread": (threading.Thread, "start", RuntimeError("no thread")),
                }
                owner, name, error = where[failing]

                def fail(*args, error=error):
                    raise error

                patch.setattr(owner, name, fail)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for name in ("1", "2"):
                    run.save(f"{folder}/{name}", background=True)
                    assert (Path(folder, name, "manifest.json")).exists()
        assert len(caught) == (comm.rank == 0), [each.message for each in caught]
        assert "snapshot" not in [thread.name for thread in threading.enumerate()]
        for each in caught:
            words = str(each.message)
            assert "written at once" in words and f"the state: rank {rank}: " in words


CASES = [
    keep_what_was_there,
    fail_later,
    differ,
    come_too_late,
    have_no_room,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_in_the_background(tmp_path, case):
    folder = tmp_path / "out"
    folder.mkdir()
    assert_on_ranks(2, case, str(folder))


@pytest.mark.parametrize(
    "calls",
    [
        ["fsync", "replace", "rename"],
        pytest.param([*FAILING], marks=pytest.mark.matrix),
    ],
)
def test_any_call_may_fail(tmp_path, calls):
    assert_on_ranks(2, fail_anywhere, str(tmp_path), calls)


def end_with_nobody_asking(comm, folder):
    Run(comm, "2").save(f"{folder}/1", background=True)


def end_after_a_call_that_failed(comm, folder):
    run = Run(comm, "2")
    if comm.rank == 1:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    with run.pipe:
        run.save(f"{folder}/1", background=True)
        with pytest.raises(ZeroDivisionError), run.pipe.internals.ranks.calls.guarded():
            raise ZeroDivisionError
        with pytest.raises(RuntimeError, match="an earlier call failed"):
            wait_for_snapshot(run.pipe)


def test_the_end_of_python_waits_for_it(tmp_path):
    result = on_ranks(2, end_with_nobody_asking, str(tmp_path))
    assert result.returncode == 0, result.stdout
    assert latest_snapshot(tmp_path) == tmp_path / "1"


def test_the_end_of_python_tells_of_a_failure(tmp_path):
    result = on_ranks(2, end_after_a_call_that_failed, str(tmp_path))
    assert result.returncode != 0, result.stdout
    assert "1: rank 1: " in result.stdout and "File too large" in result.stdout
    assert "Traceback" not in result.stdout
    assert latest_snapshot(tmp_path) is None
