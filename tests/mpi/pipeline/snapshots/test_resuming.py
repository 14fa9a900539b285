"""What resume='auto' finds on several ranks, or why it cannot tell: the same on all."""

import os

import pytest
from chainer.iterators import SerialIterator
from chainer.training import Trainer

from pipeline import PipelineUpdater, SnapshotError, snapshot
from tests.support.mpiexec import assert_on_ranks
from tests.support.snapshot_training import BATCHES, Run


def resume(run, out):
    """Returns the extension after it has resumed."""
    iterator = SerialIterator(BATCHES, 1) if run.pipe.is_first else None
    updater = PipelineUpdater(iterator, run.optimizers[0], run.pipe)
    extension = snapshot("{.updater.iteration}", resume="auto", strict=False)
    extension.initialize(Trainer(updater, out=out))
    return extension


def a_directory_that_cannot_be_listed(comm, folder):
    run = Run(comm, "2")
    listdir = os.listdir

    def failing(path="."):
        if os.fspath(path) == folder:
            raise PermissionError(13, "Permission denied", path)
        return listdir(path)

    os.listdir = failing
    with pytest.raises(SnapshotError) as caught:
        resume(run, folder)
    os.listdir = listdir
    words = f"rank 0: cannot look for snapshots in {folder}: Permission denied"
    assert comm.allgather(words in str(caught.value)) == [True, True], caught.value
    assert len(set(comm.allgather(str(caught.value)))) == 1


def on_two_ranks(comm, folder):
    a_directory_that_cannot_be_listed(comm, folder)


def test_on_two_ranks(tmp_path):
    assert_on_ranks(2, on_two_ranks, str(tmp_path))
