"""A load that fails on one rank has the same outcome on all."""

import numpy as np
import pytest

from pipeline import SnapshotError
from tests.support.mpiexec import assert_on_ranks
from tests.support.snapshot_training import BATCHES, Run


def words_of(comm, error, call, *args):
    """Returns the words of an error, the same on each rank."""
    with pytest.raises(error) as caught:
        call(*args)
    words = comm.allgather(str(caught.value))
    assert len(set(words)) == 1
    return words[0]


def fail_on_one_rank(comm, folder):
    run, other = Run(comm, "2"), Run(comm, "2", seed=4)
    run.step(0)
    run.save(f"{folder}/1")
    expected = run.step(1)
    # The last stage has another shape: nowhere anything is loaded.
    before = other.arrays()
    last = other.stages[0][-1] if comm.rank == 1 else None
    if comm.rank == 1:
        weight, last.W.array = last.W.array, np.zeros((5, 8), "f")
    words = words_of(comm, SnapshotError, other.load, f"{folder}/1")
    assert "7/W was saved with shape (4, 8) and dtype float32" in words
    if comm.rank == 1:
        last.W.array = weight
    after = other.arrays()
    assert all(np.array_equal(after[key], before[key]) for key in before)
    other.step(0)

    # A layer fails on one rank when the others have loaded theirs.
    def serialize(serializer):
        raise RuntimeError("a layer fails")

    if comm.rank == 1:
        last.serialize = serialize
    words = words_of(comm, SnapshotError, other.load, f"{folder}/1")
    assert "rank 1: RuntimeError: a layer fails; the run was changed in" in words
    changed = any(not np.array_equal(v, after[k]) for k, v in other.arrays().items())
    assert all(comm.allgather(changed))
    x, t = BATCHES[0]
    calls = [(other.pipe.step, x, t), (other.pipe.evaluate, x, t)]
    calls += [(other.pipe.predict, x), (other.save, f"{folder}/2")]
    for call in calls:
        assert "load a complete snapshot" in words_of(comm, RuntimeError, *call)
    if comm.rank == 1:
        del last.serialize
    other.load(f"{folder}/1")
    assert other.step(1) == expected
    other.save(f"{folder}/2")


def test_all_ranks_have_the_same_outcome(tmp_path):
    assert_on_ranks(2, fail_on_one_rank, str(tmp_path))
