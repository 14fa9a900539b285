"""Directories of snapshots where the file system fails, or somebody left something."""

import errno
import io
import os
import shutil
import time
import warnings

import numpy as np
import pytest

from divisible.communication.flight_record import own_flight_record
from pipeline import (
    Snapshot,
    SnapshotError,
    latest_snapshot,
    load_snapshot,
)
from pipeline.snapshots.names import parts

# All of it, at once and in the background.
pytestmark = pytest.mark.parametrize("background", [False, True], ids=["now", "later"])


@pytest.fixture
def failing(monkeypatch):
    """Lets a function of ``os``, or the one that opens files, fail for some paths."""

    def fail(name, fits, code=errno.EIO, module=os):
        function = getattr(module, name)

        def call(path, *args, **options):
            if not isinstance(path, int) and fits(os.fspath(path)):
                raise OSError(code, os.strerror(code), os.fspath(path))
            return function(path, *args, **options)

        monkeypatch.setattr(module, name, call)

    return fail


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_none_that_can_be_read_is_not_none(tmp_path, save, failing, code):
    save(tmp_path / "1")
    failing("stat", lambda path: path.endswith("manifest.json"), code)
    words = f"manifest.json: {os.strerror(code)}"
    with pytest.warns(UserWarning, match=words):  # noqa: SIM117
        with pytest.raises(SnapshotError, match=words):
            latest_snapshot(tmp_path)


def test_an_older_one_is_taken_for_one_that_cannot_be_read(tmp_path, save, failing):
    save(tmp_path / "1")
    save(tmp_path / "2")
    failing("stat", lambda path: path.endswith("2/manifest.json"))
    with pytest.warns(
        UserWarning, match="passed over: .*2/manifest.json: Input/output"
    ):
        assert latest_snapshot(tmp_path).name == "1"


def test_without_files_left_no_older_one_is_taken(tmp_path, save, failing):
    save(tmp_path / "1")
    save(tmp_path / "2")
    failing("stat", lambda path: path.endswith("2/manifest.json"), errno.EMFILE)
    with pytest.raises(SnapshotError, match="Too many open files"):
        latest_snapshot(tmp_path)


def emptied(path):
    for file in path.iterdir():
        file.unlink()


DAMAGES = {
    "changed": lambda path: (path / "manifest.json").write_text('{"divisible": 1}'),
    "zeros": lambda path: (path / "manifest.json").write_bytes(bytes(900)),
    "empty": lambda path: (path / "manifest.json").write_bytes(b""),
    "lost": lambda path: (path / "manifest.json").unlink(),
    "alone": lambda path: (
        emptied(path),
        (path / "manifest.json").write_text('{"divi'),
    ),
    "with notes": lambda path: (
        (path / "manifest.json").write_bytes(b"\xff"),
        (path / "notes").touch(),
    ),
    "a file is lost": lambda path: (
        (path / "manifest.json").write_bytes(b""),
        (path / "common.npz").unlink(),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_passed_over_may_be_replaced(tmp_path, save, damage, names):
    save(tmp_path / "1")
    save(tmp_path / "2")
    DAMAGES[damage](tmp_path / "2")
    with pytest.warns(UserWarning, match="a snapshot is passed over: .*manifest.json"):
        assert latest_snapshot(tmp_path).name == "1"
    save(tmp_path / "2", values={"epoch": 2})
    assert Snapshot.open(latest_snapshot(tmp_path)).values == {"epoch": 2}
    assert names(tmp_path) == ["1", "2"]


def test_what_cannot_be_read_may_be_replaced(tmp_path, save, failing, names):
    save(tmp_path / "1")
    failing("open", lambda path: path.endswith("1/manifest.json"), module=io)
    save(tmp_path / "1")
    assert names(tmp_path) == ["1"]


def test_what_may_be_no_snapshot_stays_and_the_cause_is_named(
    tmp_path, save, failing, names
):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "manifest.json").write_text("{}")
    with pytest.raises(SnapshotError, match="is there and is no snapshot"):
        save(tmp_path / "1")
    failing("open", lambda path: path.endswith("1/manifest.json"), module=io)
    with pytest.raises(SnapshotError, match="json: Input/output error"):
        save(tmp_path / "1")
    failing("stat", lambda path: path.endswith("/1"))
    with pytest.raises(SnapshotError, match="cannot look at .*1: Input/output error"):
        save(tmp_path / "1")
    assert names(tmp_path) == ["1"]


def test_an_error_without_words_is_named(tmp_path, save, monkeypatch):
    def fail(folder):
        raise OSError("the server is silent")

    save(tmp_path / "1")
    (tmp_path / "1" / "common.npz").unlink()
    for module in ("files", "directories"):
        monkeypatch.setattr(f"pipeline.snapshots.{module}.read_manifest", fail)
    words = "cannot read .*1/manifest.json: the server is silent"
    with pytest.raises(SnapshotError, match=words):
        Snapshot.open(tmp_path / "1")
    (tmp_path / "1" / "notes").touch()
    with pytest.raises(SnapshotError, match=words):
        save(tmp_path / "1")


def test_what_cannot_be_looked_at_is_not_said_to_be_gone(tmp_path, save, failing):
    (tmp_path / "1").mkdir()
    failing("stat", lambda path: path.endswith("/1"))
    with pytest.raises(SnapshotError, match="cannot look at .*1: Input/output error"):
        Snapshot.open(tmp_path / "1")
    with pytest.raises(SnapshotError, match="cannot look at .*1: Input/output error"):
        load_snapshot(tmp_path / "1", save.pipe, save.optimizer)


@pytest.mark.parametrize("name", ["stage-0.npz", "common.npz"])
def test_changed_bytes_are_passed_over(tmp_path, save, name):
    for number in "123":
        save(tmp_path / number)
    for number in "23":
        file = tmp_path / number / name
        content = bytearray(file.read_bytes())
        content[-30] ^= 1
        file.write_bytes(content)
    with pytest.warns(UserWarning, match=f"passed over: .*/{name} was") as caught:
        assert latest_snapshot(tmp_path).name == "1"
    assert len(caught) == 2


def test_saved_though_its_directory_cannot_be_flushed(
    tmp_path, save, monkeypatch, names
):
    def failing(path):
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    save(tmp_path / "1")
    save(tmp_path / "2", values={"epoch": 1})
    monkeypatch.setattr("pipeline.snapshots.directories.flush_directory", failing)
    with pytest.warns(UserWarning, match="2 is saved, but .*flush .*: Input/output"):
        save(tmp_path / "2", values={"epoch": 1}, n_retains=1)
    # Where that is an error, it is saved all the same, and nothing says it is not.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="2 is saved, but .*flush .*: Input/out"):
            save(tmp_path / "2", values={"epoch": 2}, n_retains=1)
    # The new one's name may not be on disk: the older ones stay.
    assert names(tmp_path)[:2] == ["1", "2"]
    assert {parts(name)[0] for name in names(tmp_path)[2:]} == {"2"}
    assert Snapshot.open(latest_snapshot(tmp_path)).values == {"epoch": 2}
    monkeypatch.undo()
    save(tmp_path / "2", values={"epoch": 3}, n_retains=1)
    assert names(tmp_path) == ["2"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_saved_though_old_ones_cannot_be_looked_for(tmp_path, save, failing, code):
    save(tmp_path / "1")
    failing("listdir", lambda path: path == str(tmp_path), code)
    with pytest.warns(UserWarning, match=os.strerror(code)) as caught:
        save(tmp_path / "2", n_retains=1)
    words = [str(each.message) for each in caught]
    assert "2 is dated by the clock alone" in words[0]
    assert "2 is saved, but older ones stay" in words[1]
    Snapshot.open(tmp_path / "2").verify()


def test_saved_though_the_old_one_cannot_be_removed(tmp_path, save, failing):
    save(tmp_path / "1", values={"epoch": 1})
    failing("rmtree", lambda path: path.endswith(".partial"), module=shutil)
    save(tmp_path / "1", values={"epoch": 2})
    assert Snapshot.open(latest_snapshot(tmp_path)).values == {"epoch": 2}


@pytest.mark.parametrize("ending", [".partial", ".replaced"])
@pytest.mark.parametrize("kind", ["file", "link", "dangling", "loop", "directory"])
def test_left_overs_of_any_kind_are_removed(tmp_path, save, kind, ending, names):
    elsewhere = save(tmp_path / "elsewhere" / "1")
    out = tmp_path / "out"
    save(out / "iter_1")
    for number in (1, 2):
        left = out / f"iter_{number}{ending}"
        if kind == "file":
            left.touch()
        elif kind == "directory":
            (left / "sub").mkdir(parents=True)
        else:
            targets = {"link": elsewhere, "dangling": "gone", "loop": left}
            left.symlink_to(targets[kind])
    for number in (1, 2):
        save(out / f"iter_{number}", n_retains=1)
    assert names(out) == ["iter_2"]
    Snapshot.open(elsewhere).verify()


def test_snapshots_that_are_links_go_like_others(tmp_path, save, names):
    """Somebody has moved them to a larger disk; there they stay."""
    out = tmp_path / "out"
    for number in range(1, 4):
        save(tmp_path / "large" / f"iter_{number}")
        out.mkdir(exist_ok=True)
        (out / f"iter_{number}").symlink_to(tmp_path / "large" / f"iter_{number}")
    save(out / "iter_4", n_retains=2)
    assert names(out) == ["iter_3", "iter_4"]
    save(out / "iter_1", n_retains=2)
    assert names(out) == ["iter_1", "iter_4"]
    assert names(tmp_path / "large") == ["iter_1", "iter_2", "iter_3"]


@pytest.mark.parametrize("target", ["gone", "1"])
def test_a_link_that_leads_nowhere_blocks_no_name(tmp_path, save, target, names):
    (tmp_path / "1").symlink_to(target)
    save(tmp_path / "1", values={"epoch": 1})
    assert not (tmp_path / "1").is_symlink() and names(tmp_path) == ["1"]
    Snapshot.open(tmp_path / "1").verify()


def test_a_clock_that_is_wrong_does_not_decide(tmp_path, save, monkeypatch, names):
    """The order is that of training, whatever the clock says at each restart."""
    for number, now in enumerate([5e9, 1.7e9, 1e3, 1e3, 4e9, 0.0, -5.0, 6e9, 1e9]):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        found = latest_snapshot(tmp_path)
        assert found == (tmp_path / str(number - 1) if number else None)
        if found is not None:
            load_snapshot(found, save.pipe, save.optimizer)
        save(tmp_path / str(number))
    assert Snapshot.open(tmp_path / "7").time == 6e9
    # The same if the newest one is replaced, or others are removed.
    save(tmp_path / "3")
    assert latest_snapshot(tmp_path).name == "3"
    save(tmp_path / "9", n_retains=2)
    assert names(tmp_path) == ["3", "9"]
    assert latest_snapshot(tmp_path).name == "9"


def test_a_run_that_begins_anew_is_newer_than_a_longer_one(tmp_path, save, monkeypatch):
    save(tmp_path / "1")
    n_steps = Snapshot.open(tmp_path / "1").n_steps
    x, t = np.zeros((2, 2), "f"), np.zeros(2, "i")
    save.pipe.step(x, t)
    save(tmp_path / "100")
    assert Snapshot.open(tmp_path / "100").n_steps == n_steps + 1
    load_snapshot(tmp_path / "1", save.pipe, save.optimizer)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    save(tmp_path / "2")
    assert latest_snapshot(tmp_path).name == "2"


def test_the_flight_record_has_the_steps_that_were_saved(tmp_path, save):
    before = own_flight_record.n_steps
    x, t = np.zeros((2, 2), "f"), np.zeros(2, "i")
    for _ in range(3):
        save.pipe.step(x, t)
    save(tmp_path / "1")
    save.pipe.step(x, t)
    log = own_flight_record.log()
    assert (log.saved, log.n_steps) == (before + 3, before + 4)
    own_flight_record.save(0)
