"""Left-overs beside snapshots: whose they are, and which may go."""

import os
import subprocess
import sys
import time
import warnings

import pytest

from pipeline import Snapshot, latest_snapshot
from pipeline.snapshots import directories, owners
from pipeline.snapshots.names import PARTIAL, REPLACED, aside
from tests.support.processes import ROOT

PROGRAM = "from pipeline.snapshots.owners import new_token; print(new_token(), flush=1)"
ELSEWHERE = "f" * 12


@pytest.fixture(scope="module")
def living():
    """The token of a process that lives."""
    command = [sys.executable, "-c", f"{PROGRAM}; input()"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **streams) as process:
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.wait(10)


@pytest.fixture(scope="module")
def dead():
    """The token of a process that has ended."""
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout[:-1]


@pytest.fixture
def left(tmp_path):
    """Makes something beside a snapshot, of a given age in seconds."""

    def left(token, name="iter_1", ending=PARTIAL, seconds=0):
        path = tmp_path / aside(name, token, ending)
        path.mkdir()
        for each in (path / "stage-0.npz", path):
            if each != path:
                each.touch()
            os.utime(each, (time.time() - seconds,) * 2)
        return path

    return left


@pytest.fixture(autouse=True)
def unwarned(monkeypatch):
    monkeypatch.setattr(directories, "_has_warned", False)


def test_a_process_lives_or_does_not(living, dead):
    assert owners.lives(living) is True and owners.lives(dead) is False
    # A later process has the same number.
    assert owners.lives(living[:18] + "0" * 9 + "1" + living[28:]) is False
    assert owners.lives(ELSEWHERE + living[12:]) is None
    mine = owners.new_token()
    assert owners.lives(mine) and mine != owners.new_token()
    assert owners.is_of_this_process(mine) and not owners.is_of_this_process(living)


def test_a_process_that_nobody_has_waited_for_is_dead():
    command = [sys.executable, "-c", PROGRAM]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    token = process.stdout.readline().strip()
    deadline = time.monotonic() + 20
    while owners.lives(token) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert owners.lives(token) is False
    process.communicate(timeout=10)


def test_what_is_left_over(left, living, dead):
    assert not owners.is_left_over(left(living, seconds=7200))
    assert owners.is_left_over(left(dead))
    assert not owners.is_left_over(left(ELSEWHERE + living[12:], seconds=3000))
    assert owners.is_left_over(left(ELSEWHERE + dead[12:], seconds=7200))
    mine = owners.new_token()
    owners.use(mine)
    path = left(mine)
    assert not owners.is_left_over(path)
    owners.release(mine)
    assert owners.is_left_over(path)


def test_a_file_that_grows_is_not_left_over(left):
    path = left(ELSEWHERE + "0" * 24, seconds=7200)
    assert owners.is_left_over(path)
    (path / "stage-0.npz").write_bytes(b"more")
    os.utime(path, (0, 0))
    assert not owners.is_left_over(path)


def test_the_clock_is_that_of_the_file_system(left, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 9e9)
    assert not owners.is_left_over(left(ELSEWHERE + "1" * 24, seconds=-5e9))


def test_what_dead_runs_left_goes_and_other_things_stay(
    tmp_path, save, left, living, dead, names
):
    gone = [left(dead), left(dead, "iter_7"), left(ELSEWHERE + "1" * 24, seconds=7200)]
    stays = [
        left(living),
        left(ELSEWHERE + "0" * 24, seconds=3000),
        left(dead, "best"),
        left(living, "iter_1", REPLACED),
        left(dead, "iter_7", REPLACED),
    ]
    gone.append(left(dead, "iter_1", REPLACED))
    with pytest.warns(UserWarning, match="another run saves snapshots"):
        save(tmp_path / "iter_1")
    assert names(tmp_path) == sorted(["iter_1", *(each.name for each in stays)])


def test_another_run_is_told_of_once(tmp_path, save, left, living):
    left(living, "iter_5")
    with pytest.warns(UserWarning, match="another run saves .*now iter_5: ") as caught:
        save(tmp_path / "iter_1")
        save(tmp_path / "iter_2")
    assert len(caught) == 1


@pytest.mark.parametrize("changes", [True, False])
def test_another_machine_is_told_of_if_it_writes(
    tmp_path, save, left, changes, monkeypatch
):
    path = left(ELSEWHERE + "0" * 24, seconds=600)
    manifest = Snapshot.write_manifest

    def write_manifest(snapshot):
        manifest(snapshot)
        if changes:
            (path / "stage-0.npz").write_bytes(b"more")

    monkeypatch.setattr(Snapshot, "write_manifest", write_manifest)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save(tmp_path / "iter_2")
    assert len(caught) == changes


def test_others_names_and_left_overs_are_no_other_run(tmp_path, save, left, living):
    left(living, "best")
    left(ELSEWHERE + "0" * 24)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(tmp_path / "iter_1")
    assert latest_snapshot(tmp_path, "iter_*") == tmp_path / "iter_1"
