"""Folders of copies belong to a run, and to nobody when its ranks are dead."""

import os
import subprocess
import sys
import time

import pytest

from pipeline import SnapshotError
from pipeline.copies import places
from pipeline.copies.places import (
    Home,
    copies_in,
    folder_of_run,
    make_rank_folder,
    make_run_folder,
    place_of,
    remove_dead_runs,
)

# A process that makes a folder of copies, and says so; then it waits to be killed.
OWNER = """
import sys
from pathlib import Path
from pipeline.copies.places import make_rank_folder, make_run_folder
folder = Path(sys.argv[1])
make_run_folder(folder)
kept = make_rank_folder(folder, "old", 0)
(kept[0] / "copy_7-1").mkdir()
print("made", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path):
    """A living process of a run, and the run's folder."""
    folder = folder_of_run(tmp_path, "another run")
    command = [sys.executable, "-c", OWNER, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "made\n"
        yield process, folder
        process.kill()


def made_old(folder):
    for each in [*folder.rglob("*"), folder]:
        os.utime(each, (0, time.time() - 2 * 3600))


def test_copies_of_a_dead_run_stay_for_an_hour_unless_their_room_is_needed(owner):
    process, folder = owner
    own = folder_of_run(folder.parent, "this run")
    made_old(folder)
    remove_dead_runs(folder.parent, own)
    assert [each.name for each in copies_in(folder)] == ["copy_7-1"]
    process.kill()
    process.wait()
    remove_dead_runs(folder.parent, folder)
    assert folder.exists()
    remove_dead_runs(folder.parent, own)
    assert list(folder.parent.iterdir()) == []


def test_copies_of_a_run_that_has_just_died_wait_for_its_restart(owner):
    process, folder = owner
    process.kill()
    process.wait()
    for is_needed in (False, True):
        remove_dead_runs(folder.parent, folder / "other", is_needed)
        assert folder.exists()


def test_a_second_run_of_a_name_is_refused_while_the_first_one_lives(
    owner, monkeypatch
):
    process, folder = owner
    monkeypatch.setattr(places, "_SECONDS_TO_END", 0.2)
    with pytest.raises(SnapshotError, match=f"another run .* process {process.pid} "):
        make_run_folder(folder)
    process.kill()
    process.wait()
    make_run_folder(folder)
    # What the dead one has left is there, to go on from.
    assert [each.name for each in copies_in(folder)] == ["copy_7-1"]


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    folder = folder_of_run(tmp_path, "run")
    folder.symlink_to(tmp_path)
    with pytest.raises(SnapshotError, match="belongs to somebody else"):
        make_run_folder(folder)


def test_a_link_with_the_name_of_a_run_is_left_alone(tmp_path):
    precious, memory = tmp_path / "precious", tmp_path / "memory"
    (precious / "a-rank-0").mkdir(parents=True)
    memory.mkdir()
    folder_of_run(memory, "another run").symlink_to(precious)
    made_old(precious)
    remove_dead_runs(memory, folder_of_run(memory, "this run"), is_needed=True)
    assert [each.is_symlink() for each in memory.iterdir()] == [True]
    assert os.listdir(precious / "a-rank-0") == []


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SnapshotError, match="cannot keep copies in .*/none"):
        place_of(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(SnapshotError, match="not a directory"):
        place_of(tmp_path / "file")
    assert place_of(tmp_path) == place_of(tmp_path / ".") != place_of(tmp_path.parent)


def test_the_last_rank_removes_the_folder_of_the_run(tmp_path):
    run_folder = folder_of_run(tmp_path, "run")
    make_run_folder(run_folder)
    homes = []
    for rank in range(2):
        folder, lock = make_rank_folder(run_folder, "now", rank)
        homes.append(Home(tmp_path, run_folder, folder, lock, "now", ["a"] * 2, rank))
    earlier = run_folder / "before-rank-0"
    for name in ("copy_3-1", "copy_4-2"):
        (earlier / name).mkdir(parents=True)
    assert homes[0].is_first and not homes[1].is_first
    homes[0].remove_earlier([earlier / "copy_4-2"])
    assert [each.name for each in copies_in(run_folder)] == ["copy_4-2"]
    homes[0].remove()
    assert run_folder.exists() and not earlier.exists()
    homes[1].remove()
    assert not run_folder.exists()
