"""Copies by hand, on one rank: what is kept, loaded, refused and removed."""

import os
import warnings

import numpy as np
import pytest
from mpi4py import MPI

from divisible import free_memory
from pipeline import SnapshotError, latest_snapshot
from pipeline.copies.room import held_bytes
from tests.support.small_run import SmallRun


@pytest.fixture
def run(tmp_path):
    """A run whose copies are in a folder, and the folder."""
    it = SmallRun(MPI.COMM_SELF)
    it.memory = tmp_path / "memory"
    it.memory.mkdir()
    it.pipe.copies.open("a run", it.memory)
    return it


def again(run):
    """Returns the same run, started again after the end of its process."""
    # A process that has ended holds no lock.
    run.pipe.copies.keep()
    other = SmallRun(MPI.COMM_SELF)
    other.change()
    other.pipe.copies.open("a run", run.memory)
    return other


def save(run, tag):
    state = {"trainer": run.trainer}
    run.pipe.copies.save(run.optimizer, state=state, values={"tag": tag})


def load(run, **options):
    state = {"trainer": run.trainer}
    return run.pipe.copies.load(run.optimizer, state=state, **options)


def names(run):
    return sorted(path.name for path in run.pipe.copies.folder.glob("copy_*"))


def test_two_whole_copies_are_kept_and_the_newest_is_loaded(run):
    for tag in range(4):
        run.step()
        save(run, tag)
        assert len(names(run)) == min(tag + 1, 3)
    run.pipe.copies.wait()
    assert names(run) == ["copy_4-3", "copy_5-4"]
    expected = run.arrays()
    other = again(run)
    found = load(other)
    assert found.values == {"tag": 3} and other.arrays() == expected
    assert other.pipe.n_steps == run.pipe.n_steps == 5
    # They go on from the same state.
    assert other.step() == run.step()
    other.pipe.close()
    assert os.listdir(run.memory) == []


def test_copies_take_the_memory_that_was_predicted(run):
    assert run.pipe.copies.n_bytes == 0
    for tag in range(4):
        run.step()
        save(run, tag)
    copies = run.pipe.copies
    files = [path for path in copies.folder.rglob("*.npz") if path.is_file()]
    n_bytes = sum(path.stat().st_blocks * 512 for path in files)
    assert 0.9 * copies.n_bytes <= n_bytes <= copies.n_bytes
    # Of other files there are a manifest for each copy, and the lock.
    assert held_bytes(copies.folder) - n_bytes < 20_000


def test_copies_for_which_there_is_no_room_are_refused(run, monkeypatch):
    run.step()
    save(run, "first")
    limit = free_memory.Claim("this machine", 0, 0)
    monkeypatch.setattr("pipeline.copies.room.claims", lambda n: {"m": limit})
    monkeypatch.setattr("pipeline.copies.room.file_system", lambda path: "tmpfs")
    # No more than before: there is room.
    save(run, "second")
    big = np.zeros(100_000)
    with pytest.raises(SnapshotError, match="left of this machine. Each rank keeps"):
        run.pipe.copies.save(run.optimizer, state={"big": Big(big)})
    assert len(names(run)) == 2
    assert load(again(run)).values == {"tag": "second"}


class Big:
    """An object with a large state."""

    def __init__(self, array):
        self.array = array

    def serialize(self, serializer):
        serializer("array", self.array)


def test_damaged_copies_are_passed_over(run):
    for tag in ("old", "new"):
        run.step()
        save(run, tag)
    for path in run.pipe.copies.folder.glob("copy_3-2/stage-0.npz"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    other = again(run)
    with pytest.warns(UserWarning, match="after 3 minibatches is passed over: stage-0"):
        assert load(other).values == {"tag": "old"}


@pytest.mark.parametrize("name", ["manifest.json", "common.npz"])
def test_copies_without_a_file_are_passed_over(run, name):
    for tag in ("old", "new"):
        run.step()
        save(run, tag)
    (run.pipe.copies.folder / "copy_3-2" / name).unlink()
    other = again(run)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* is passed over: common.npz is on no host")
        assert load(other).values == {"tag": "old"}


def test_copies_of_another_run_are_none(run):
    save(run, "mine")
    other = SmallRun(MPI.COMM_SELF)
    other.pipe.copies.open("another run", run.memory)
    assert load(other) is None
    other.pipe.close()
    assert load(again(run)).values == {"tag": "mine"}


def test_the_newer_of_copy_and_snapshot_is_loaded(run, tmp_path):
    disk = tmp_path / "disk"
    assert load(again(run), snapshots=disk) is None
    run.pipe.copies.open("a run", run.memory)
    run.save(disk / "s_1", "disk")
    assert load(run, snapshots=disk).values == {"tag": "disk"}
    save(run, "memory")
    assert load(run, snapshots=disk).values == {"tag": "memory"}
    run.save(disk / "s_2", "disk again")
    assert load(run, snapshots=disk).values == {"tag": "disk again"}
    assert latest_snapshot(disk).name == "s_2"


def test_a_run_that_goes_on_removes_what_it_does_not_need(run):
    for tag in range(3):
        run.step()
        save(run, tag)
    earlier = run.pipe.copies.folder
    other = again(run)
    load(other)
    save(other, "next")
    # The one that it went on from stays until two others are whole.
    assert [path.name for path in earlier.glob("copy_*")] == ["copy_4-3"]
    save(other, "and next")
    save(other, "and another")
    assert not earlier.exists()


def test_a_failed_copy_leaves_nothing(run, monkeypatch):
    save(run, "old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipeline.copies.copies.Sending", fail)
    with pytest.raises(SnapshotError, match="No space left"):
        save(run, "new")
    monkeypatch.undo()
    assert len(names(run)) == 1 and len(list(run.pipe.copies.folder.iterdir())) == 2
    run.step()
    save(run, "next")
    assert load(again(run)).values == {"tag": "next"}
