"""Arrays in files: what is written."""

import gc
import hashlib
import sys

import numpy as np
import pytest

from pipeline import SnapshotError
from pipeline.snapshots import arrays

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
