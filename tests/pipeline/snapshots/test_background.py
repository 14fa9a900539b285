"""Snapshots in the background and their outcomes, on one process."""

import atexit
import contextlib
import errno
import io
import os
import threading
import time

import chainer.links as L
import pytest
from mpi4py import MPI

from divisible import Divisible, free_memory
from pipeline import Pipeline, SnapshotError, save_snapshot, wait_for_snapshot
from pipeline.snapshots import background as in_background
from pipeline.snapshots import writing
from tests.support.snapshot_training import names_in


@pytest.fixture
def background():
    return True


@pytest.fixture
def full_disk(monkeypatch):
    def fail(path, arrays):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing, "write_arrays", fail)


@pytest.fixture
def ends(monkeypatch):
    """The words of each call that would end all ranks."""
    words = []

    def end(what, report, has_records):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            report()
        words.append(said.getvalue())

    monkeypatch.setattr(in_background, "end_all_ranks", end)
    return words


@pytest.fixture
def at_end(monkeypatch):
    """The functions that Python would call at its end."""
    functions = []
    monkeypatch.setattr(atexit, "register", functions.append)
    monkeypatch.setattr(atexit, "unregister", functions.remove)
    return functions


@pytest.mark.usefixtures("full_disk")
def test_two_failures_are_told_together(tmp_path, save):
    save.start(tmp_path / "1")
    with pytest.raises(
        SnapshotError, match=r"snapshot .*/2: .*; and before it, .*/1: .*No space"
    ):
        save(tmp_path / "2", background=False)


@pytest.mark.usefixtures("full_disk")
def test_a_failure_after_a_call_that_failed_is_told_at_the_end(
    tmp_path, save, at_end, ends
):
    save.start(tmp_path / "1")
    with pytest.raises(ValueError), save.pipe.internals.ranks.calls.guarded():
        raise ValueError
    with pytest.raises(RuntimeError, match="an earlier call failed"):
        wait_for_snapshot(save.pipe)
    save.pipe.close()
    (end,) = at_end
    end()
    assert "/1: rank 0: " in ends[0] and "No space left" in ends[0]


@pytest.mark.usefixtures("full_disk")
def test_what_other_ranks_write_after_a_failure_goes_as_well(tmp_path, save, at_end):
    save.start(tmp_path / "1")
    end = time.monotonic() + 30
    while names_in(tmp_path) and time.monotonic() < end:
        time.sleep(0.01)
    assert not names_in(tmp_path)
    # As another rank does whose directory is made again, or was not yet empty.
    draft = in_background.pending[save.pipe]._writing.draft
    draft.folder.mkdir()
    (draft.folder / "rank-1.json").touch()
    with pytest.raises(SnapshotError, match="No space"):
        wait_for_snapshot(save.pipe)
    assert not names_in(tmp_path)


def test_closing_waits(tmp_path, save, at_end):
    with save.pipe:
        save.start(tmp_path / "1")
    assert (tmp_path / "1").exists() and at_end == []


@pytest.mark.usefixtures("full_disk")
def test_closing_tells_of_a_failure(tmp_path, save, at_end):
    save.start(tmp_path / "1")
    with pytest.raises(SnapshotError, match="/1: .*No space"):
        save.pipe.close()
    assert at_end == []
    save.pipe.close()
    assert save.pipe.internals.ranks.are_closed


def test_the_end_has_a_deadline(tmp_path, save, at_end, ends, monkeypatch):
    hangs, write = threading.Event(), writing.write_arrays
    monkeypatch.setattr(
        writing, "write_arrays", lambda *args: hangs.wait(20) and write(*args)
    )
    monkeypatch.setattr(save.pipe.internals.ranks, "timeout", 0.02)
    save.start(tmp_path / "1")
    (end,) = at_end
    end()
    hangs.set()
    assert "rank 0: not on disk 0 s after the end of the script" in ends[0]


@pytest.mark.usefixtures("full_disk")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_end_of_a_forked_process_is_its_own(tmp_path, save, at_end, ends):
    save.start(tmp_path / "1")
    (end,) = at_end
    end()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            end()
        os._exit(len(ends))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(ends) == 1


def test_two_saves_in_a_row(tmp_path, monkeypatch):
    """The second one claims no more than the first, and a little."""
    reckoned, found = free_memory.claims, []
    monkeypatch.setattr(free_memory, "PEAKS", free_memory.Peaks())
    monkeypatch.setattr(
        free_memory,
        "claims",
        lambda n: found.append(reckoned(n, peaks=free_memory.PEAKS)) or {},
    )
    stage = Divisible(L.Linear(1 << 12, 1 << 11))
    pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=1)
    for _ in range(3):
        save_snapshot(tmp_path / "1", pipe, [], background=True)
        wait_for_snapshot(pipe)
    first, *later = [max((c.taken for c in each.values()), default=0) for each in found]
    assert all(taken < first + 16 * 2**20 for taken in later), (first, later)
