"""What comes of snapshots in the background, on one process."""

import errno
import os

import pytest

from pipeline import SnapshotError
from pipeline.snapshots import writing


@pytest.fixture
def background():
    return True


@pytest.fixture
def full_disk(monkeypatch):
    def fail(path, arrays):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing, "write_arrays", fail)


@pytest.mark.usefixtures("full_disk")
def test_two_failures_are_told_together(tmp_path, save):
    save.start(tmp_path / "1")
    with pytest.raises(
        SnapshotError, match=r"snapshot .*/2: .*; and before it, .*/1: .*No space"
    ):
        save(tmp_path / "2", background=False)
