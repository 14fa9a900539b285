"""Snapshots with other cuts of the model."""

import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from divisible import Plan
from pipeline import (
    Snapshot,
    SnapshotError,
    repartition,
)
from tests.support.examples import examples
from tests.support.snapshot_training import Run, saved_arrays


@pytest.mark.parametrize("cuts", [[0, 8], [0, 3, 8], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
def test_repartition(tmp_path, run, cuts):
    repartition(tmp_path / "1", Plan(cuts), tmp_path / "2")
    before, after = saved_arrays(tmp_path / "1"), saved_arrays(tmp_path / "2")
    assert set(after) == set(before)
    assert all(after[key].tobytes() == before[key].tobytes() for key in before)
    snapshot = Snapshot.open(tmp_path / "2")
    assert list(snapshot.layer_ranges) == list(zip(cuts, cuts[1:]))
    assert snapshot.values == {"epoch": 7} and snapshot.n_steps == 2
    for number, (start, end) in enumerate(snapshot.layer_ranges):
        with np.load(snapshot.path / f"stage-{number}.npz") as arrays:
            positions = {key.split("/")[1] for key in arrays} - {"t", "epoch"}
        assert positions - {"settings"} <= set(map(str, range(start, end)))

    # And back, and the run goes on.
    repartition(tmp_path / "2", 1, tmp_path / "3")
    resumed = Run(MPI.COMM_SELF, "1", seed=4)
    resumed.load(tmp_path / "3")
    assert resumed.step(2) == run.step(2)


@examples(15)
@given(chain=st.lists(st.sets(st.integers(1, 7)), min_size=1, max_size=3))
def test_any_chain_of_cuts_keeps_every_array(chain):
    run = Run(MPI.COMM_SELF, "1")
    with tempfile.TemporaryDirectory() as folder:
        run.save(f"{folder}/0")
        before = saved_arrays(f"{folder}/0")
        for i, inner in enumerate(chain):
            plan = Plan([0, *sorted(inner), 8])
            repartition(f"{folder}/{i}", plan, f"{folder}/{i + 1}")
        after = saved_arrays(f"{folder}/{len(chain)}")
        assert set(after) == set(before)
        assert all(after[key].tobytes() == before[key].tobytes() for key in before)


def test_repartition_is_refused(tmp_path, run):
    with pytest.raises(ValueError, match="is of 9 layers, but .* of a model of 8"):
        repartition(tmp_path / "1", Plan([0, 9]), tmp_path / "2")
    with pytest.raises(ValueError, match="is the snapshot to read"):
        repartition(tmp_path / "1", 2, tmp_path / "1")
    with pytest.raises(ValueError, match="is the snapshot to read, or in it"):
        repartition(tmp_path / "1", 2, tmp_path / "1" / "again")
    # Nothing but a snapshot is replaced: here it would be the one that is read.
    with pytest.raises(SnapshotError, match="is there and is no snapshot"):
        repartition(tmp_path / "1", 2, tmp_path)
    assert Snapshot.open(tmp_path / "1").n_layers == 8
    file = tmp_path / "1" / "stage-0.npz"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SnapshotError, match="stage-0.npz has"):
        repartition(tmp_path / "1", 2, tmp_path / "2")
    assert not (tmp_path / "2").exists()
