"""The lock of a directory: a second run is refused, and what is dead is no run."""

import errno
import fcntl
import gc
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline import Snapshot, SnapshotError, latest_snapshot
from pipeline.snapshots.directories import LOCK, Draft, locked
from pipeline.snapshots.names import PARTIAL, REPLACED, TOKEN_DIGITS, name_beside
from tests.support.processes import ROOT

PROGRAM = """
import sys
from pathlib import Path
from pipeline.snapshots.directories import locked
lock = locked(Path(sys.argv[1]))
print("locked", flush=True)
input()
"""


@pytest.fixture
def other(tmp_path):
    """A process that has locked the directory."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **streams) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


@pytest.mark.parametrize("background", [False, True])
def test_a_second_run_is_refused(tmp_path, save, other, names):
    words = f"another run saves snapshots in .*: process {other.pid} on .*remove"
    for _ in range(2):
        with pytest.raises(SnapshotError, match=words):
            save(tmp_path / "iter_1")
    assert names(tmp_path) == []
    other.kill()
    other.wait(20)
    save(tmp_path / "iter_1")
    Snapshot.open(tmp_path / "iter_1").verify()


def test_an_error_that_is_kept_lifts_no_lock_of_later(tmp_path, save, other):
    with pytest.raises(SnapshotError, match="another run") as caught:
        save(tmp_path / "iter_1")
    other.kill()
    other.wait(20)
    save(tmp_path / "iter_1")
    del caught
    gc.collect()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "another run" in tried.stderr


def test_a_lock_whose_owner_is_not_known_can_be_removed(tmp_path, save, other):
    """As the one of a host that does not come back."""
    (tmp_path / LOCK).unlink()
    save(tmp_path / "iter_1")


def test_runs_of_one_process_share_the_lock(tmp_path):
    first, second = locked(tmp_path), locked(tmp_path)
    assert first is second
    del first
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, input="")
    assert f"process {os.getpid()} on " in tried.stderr
    del second
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, input="x")
    assert tried.stdout == "locked\n"


def test_threads_of_one_process_share_the_lock(tmp_path, monkeypatch):
    lockf = fcntl.lockf

    def slowly(*arguments):
        time.sleep(0.1)
        lockf(*arguments)

    monkeypatch.setattr(fcntl, "lockf", slowly)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(locked, [tmp_path] * 2)
    assert first is second


def test_a_closed_pipeline_saves_no_more(tmp_path, save):
    save(tmp_path / "iter_1")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "input": "\n"}
    assert "another run" in subprocess.run(command, **options).stderr
    save.pipe.close()
    assert subprocess.run(command, **options).stdout == "locked\n"


def test_a_lock_that_was_lifted_is_taken_again(tmp_path, save):
    """Whoever opens and closes the file in this process lifts it."""
    save(tmp_path / "iter_1")
    (tmp_path / LOCK).read_bytes()
    save(tmp_path / "iter_2")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "another run" in tried.stderr


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EIO])
def test_a_file_system_without_locks(tmp_path, save, monkeypatch, code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "lockf", fail)
    if code == errno.ENOLCK:
        with pytest.warns(UserWarning, match="has no locks: give each run"):
            save(tmp_path / "iter_1")
        Snapshot.open(tmp_path / "iter_1").verify()
    else:
        with pytest.raises(SnapshotError, match=f"cannot lock .*{LOCK}: Input/output"):
            save(tmp_path / "iter_1")


def test_a_link_is_not_followed(tmp_path, save):
    (tmp_path / "precious").write_text("data")
    (tmp_path / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(SnapshotError, match=f"cannot lock .*{LOCK}: Too many levels"):
        save(tmp_path / "iter_1")
    assert (tmp_path / "precious").read_text() == "data"


def test_what_dead_runs_left_goes_and_other_things_stay(tmp_path, save, names):
    def left(name, ending=PARTIAL, token="0" * TOKEN_DIGITS):
        path = tmp_path / name_beside(name, token, ending)
        path.mkdir()
        (path / "stage-0.npz").touch()
        return path.name

    left("iter_1")
    left("iter_7")
    left("iter_1", REPLACED)
    stays = [left("best"), left("iter_7", REPLACED)]
    save(tmp_path / "iter_1")
    assert names(tmp_path) == sorted(["iter_1", *stays])
    assert latest_snapshot(tmp_path, pattern="iter_1") == tmp_path / "iter_1"


def test_what_another_run_of_this_process_writes_stays(tmp_path, save, names):
    draft = Draft(tmp_path / "iter_5")
    draft.begin()
    save(tmp_path / "iter_1")
    assert names(tmp_path) == ["iter_1", draft.folder.name]
    draft.release()
    save(tmp_path / "iter_1")
    assert names(tmp_path) == ["iter_1"]
