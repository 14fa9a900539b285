"""Directories of snapshots where the file system fails, or somebody left something."""

import errno
import os

import chainer.links as L
import pytest
from chainer import optimizers
from mpi4py import MPI

from divisible import Divisible
from pipeline import Pipeline, SnapshotError, latest_snapshot, save_snapshot


@pytest.fixture
def save():
    stage = Divisible(L.Linear(2, 3))
    pipe = Pipeline(stage, MPI.COMM_SELF, 1)
    optimizer = optimizers.SGD().setup(stage)

    def save(path, **options):
        save_snapshot(path, pipe, optimizer, **options)
        return path

    save.pipe = pipe
    return save


def names(folder):
    return sorted(path.name for path in folder.iterdir())


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
    words = f"{os.strerror(code)}: .*manifest.json"
    with pytest.warns(UserWarning, match=words):  # noqa: SIM117
        with pytest.raises(SnapshotError, match=words):
            latest_snapshot(tmp_path)


def test_an_older_one_is_taken_for_one_that_cannot_be_read(tmp_path, save, failing):
    save(tmp_path / "1")
    save(tmp_path / "2")
    failing("stat", lambda path: path.endswith("2/manifest.json"))
    with pytest.warns(UserWarning, match="passed over: .*Input/output.*2/manifest"):
        assert latest_snapshot(tmp_path).name == "1"


def test_without_files_left_no_older_one_is_taken(tmp_path, save, failing):
    save(tmp_path / "1")
    save(tmp_path / "2")
    failing("stat", lambda path: path.endswith("2/manifest.json"), errno.EMFILE)
    with pytest.raises(SnapshotError, match="Too many open files"):
        latest_snapshot(tmp_path)
