"""Arrays in files: what is written, and which file an error names."""

import errno
import gc
import hashlib
import itertools
import os
import shutil
import sys

import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers
from mpi4py import MPI

from divisible import Divisible
from pipeline import (
    Pipeline,
    SnapshotError,
    import_npz,
    load_snapshot,
    save_snapshot,
    wait_for_snapshot,
)
from pipeline.snapshots import arrays
from pipeline.snapshots.arrays import NotingFile
from tests.support.snapshot_training import names_in

ARRAYS = {
    "0/W": np.arange(6, dtype="f").reshape(2, 3).T,
    "1/empty": np.zeros((0, 2), "e"),
    "": np.array(None),
    "name": np.array("text"),
}


def test_a_file_is_what_numpy_would_write(tmp_path):
    np.savez(tmp_path / "numpy.npz", **ARRAYS)
    written = arrays.write_arrays(tmp_path / "ours.npz", ARRAYS)
    content = (tmp_path / "ours.npz").read_bytes()
    assert written["bytes"] == len(content)
    assert written["sha256"] == hashlib.sha256(content).hexdigest()
    with (
        np.load(tmp_path / "numpy.npz", allow_pickle=True) as right,
        np.load(tmp_path / "ours.npz", allow_pickle=True) as found,
    ):
        assert found.files == right.files
        for key in right.files:
            np.testing.assert_array_equal(found[key], right[key], strict=True)


def test_a_key_may_be_the_name_of_an_argument(tmp_path):
    arrays.write_arrays(tmp_path / "a.npz", {"file": np.arange(3)})
    with arrays.opened(tmp_path / "a.npz") as found:
        assert found["file"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("n_calls", [0, 1, 3])
def test_nothing_is_written_after_an_error(tmp_path, monkeypatch, n_calls):
    """An archive that is left open would be closed, in vain, when it is freed."""
    written, unraisable = [], []

    def write(self, data):
        written.append(data)
        if len(written) > n_calls:
            raise OSError("no room")
        return len(data)

    monkeypatch.setattr(arrays._HashingFile, "write", write)
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with pytest.raises(SnapshotError, match="cannot write .*a.npz: no room"):
        arrays.write_arrays(tmp_path / "a.npz", ARRAYS)
    n_written = len(written)
    gc.collect()
    assert len(written) == n_written
    assert not unraisable


FILES = ("manifest.json", "stage-0.npz", "common.npz")


@pytest.fixture
def arguments():
    stage = Divisible(L.Linear(2, 3))
    pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=1)
    return pipe, optimizers.SGD().setup(stage)


def break_reading(file):
    """Lets an opened file fail, as one on a disk that fails does."""
    unreadable = os.open(file.name, os.O_WRONLY)
    os.dup2(unreadable, file.fileno())
    os.close(unreadable)


@pytest.fixture
def broken_archives(monkeypatch):
    def make(file):
        break_reading(file)
        return npz_arrays(file)

    npz_arrays = arrays.NpzArrays
    monkeypatch.setattr(arrays, "NpzArrays", make)


def test_an_archive_that_cannot_be_read_is_not_called_none(
    tmp_path, arguments, broken_archives
):
    save_snapshot(tmp_path / "1", *arguments)
    words = r"cannot read .*1/stage-0.npz: Bad file descriptor$"
    with pytest.raises(SnapshotError, match=words):
        load_snapshot(tmp_path / "1", *arguments)
    np.savez(tmp_path / "model.npz", a=np.zeros(2))
    with pytest.raises(
        SnapshotError, match="cannot read .*model.npz: Bad file descriptor$"
    ):
        import_npz(tmp_path / "model.npz", arguments[0].stages[0])


def test_the_first_error_is_kept(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    with NotingFile(tmp_path / "file") as file:
        assert file.readinto(bytearray(3)) == 3 and file.error is None
        break_reading(file)
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.readinto(bytearray(3))
        assert file.error.errno == errno.EBADF
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.readall()


def test_a_file_that_cannot_be_closed_is_named(tmp_path):
    (tmp_path / "file").touch()
    file = NotingFile(tmp_path / "file")
    os.close(file.fileno())
    words = "cannot close .*/file: Bad file descriptor$"
    with pytest.raises(SnapshotError, match=words):
        file.close()


@pytest.mark.parametrize(
    ("owner", "failing", "where"),
    [
        (os, "fsync", ["/" + name for name in FILES] + [""]),
        (arrays._HashingFile, "write", ["/" + name for name in FILES[1:]]),
    ],
)
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.filterwarnings("ignore:the snapshot .* is saved, but")
def test_a_disk_that_fails_names_the_file(
    tmp_path, arguments, monkeypatch, owner, failing, where, background
):
    """Each call fails once, until one fails when the snapshot is saved, or none."""
    # The directories above are flushed once in a process, and as far as one may.
    save_snapshot(tmp_path / "1", *arguments)
    shutil.rmtree(tmp_path / "1")
    function, found = getattr(owner, failing), set()
    for k in itertools.count():
        calls = itertools.count()

        def call(*args, k=k, calls=calls):
            if next(calls) == k:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return function(*args)

        with monkeypatch.context() as patch:
            patch.setattr(owner, failing, call)
            try:
                save_snapshot(tmp_path / "1", *arguments, background=background)
                wait_for_snapshot(arguments[0])
                break
            except SnapshotError as error:
                words = str(error)
        named = [each for each in where if f".partial{each}: Input/output" in words]
        assert len(named) == 1, words
        found.update(named)
        assert not names_in(tmp_path)
    assert found == set(where)
