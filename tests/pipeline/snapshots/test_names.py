"""Names that could not be found again, and directories without a look, are refused."""

import errno
import os
from pathlib import Path

import pytest

from pipeline import SnapshotError, latest_snapshot, save_snapshot, snapshot
from pipeline.snapshots.extension import pattern_of
from pipeline.snapshots.names import is_file, matching

REFUSED = ["/tmp/iter_{.updater.iteration}", "", ".", "..", "a/..", "/", "a/."]
REFUSED += ["last.partial", "{.updater.iteration}.partial", "a/b.replaced"]


@pytest.mark.parametrize("filename", REFUSED)
def test_names_that_cannot_be_resumed_are_refused_when_made(filename):
    with pytest.raises(ValueError, match="is no name for a snapshot"):
        snapshot(filename)


@pytest.mark.parametrize("filename", ["", "a/..", ".", "a.partial", "a.replaced", "/"])
def test_save_snapshot_refuses_them_as_well(filename):
    with pytest.raises(SnapshotError, match="is no name for a snapshot"):
        save_snapshot(filename, None, None)


def test_what_is_no_format_string_is_refused_when_made():
    with pytest.raises(ValueError, match="'iter_{' is no format string"):
        snapshot("iter_{")
    with pytest.raises(TypeError, match="filename must be a format string or a func"):
        snapshot(Path("iter"))


def test_fields_of_more_than_the_trainer_are_refused_when_made():
    with pytest.raises(ValueError, match="2 fields without a number.*{0.updater"):
        snapshot("{.updater.epoch}/iter_{.updater.iteration}")


def test_names_that_can_be_resumed():
    for filename in (
        "a",
        ".hidden",
        "epoch/iter_{.updater.iteration:06d}",
        "a/",
        "{0.a}/{0.b}",
    ):
        assert snapshot(filename).filename == filename


def test_the_pattern_finds_what_the_format_string_makes():
    assert pattern_of("run[1]_{.a}_{{b}}/{0.c:06d}") == "run[[]1]_*_{b}/*"


ERRORS = [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE]


def failing(monkeypatch, code, *names):
    """Lets what looks at paths with certain names fail."""

    def wrap(function):
        def call(path=".", *args, **options):
            if os.path.basename(os.fspath(path)) in names:
                raise OSError(code, os.strerror(code), os.fspath(path))
            return function(path, *args, **options)

        return call

    for name in ("listdir", "scandir", "stat"):
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))


@pytest.mark.parametrize("code", ERRORS)
@pytest.mark.parametrize("pattern", ["*", "iter_*", "snapshot", "sub/iter_*"])
def test_where_one_cannot_look_is_said(tmp_path, monkeypatch, code, pattern):
    (tmp_path / "out" / "sub").mkdir(parents=True)
    failing(monkeypatch, code, "out", "sub")
    with pytest.raises(SnapshotError, match=f"out.*: {os.strerror(code)}"):
        latest_snapshot(tmp_path / "out", pattern=pattern)


def test_no_directory_has_none(tmp_path):
    assert latest_snapshot(tmp_path / "nothing") is None
    assert latest_snapshot(tmp_path, pattern="nothing/iter_*") is None
    (tmp_path / "file").touch()
    assert latest_snapshot(tmp_path, pattern="file/iter_*") is None
    with pytest.raises(SnapshotError, match="file: Not a directory"):
        latest_snapshot(tmp_path / "file")


@pytest.mark.parametrize(
    "pattern", ["*", "a*", "[ab]*", "a/*", "*/*", "?/x", "**/x", "a/../b", "**/*", "c"]
)
def test_patterns_mean_what_they_mean_elsewhere(tmp_path, pattern):
    for name in ("a/x", "b/x", "b/c/x", ".hidden/x", "ab"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert set(matching(tmp_path, pattern)) == set(tmp_path.glob(pattern))


def test_a_file_that_cannot_be_looked_at(tmp_path, monkeypatch):
    (tmp_path / "1").touch()
    assert is_file(tmp_path / "1") and not is_file(tmp_path / "1" / "2")
    assert not is_file(tmp_path) and not is_file(tmp_path / "2")
    failing(monkeypatch, errno.EIO, "1")
    with pytest.raises(SnapshotError, match="at .*1: Input/output error"):
        is_file(tmp_path / "1")
    (tmp_path / "loop").symlink_to("loop")
    assert not is_file(tmp_path / "loop")
