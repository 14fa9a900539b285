"""resume='auto' on several ranks finds the same on all, or says why it cannot."""

import os
import time
import warnings
from pathlib import Path

import pytest
from chainer.iterators import SerialIterator
from chainer.training import Trainer

from pipeline import PipelineUpdater, Snapshot, SnapshotError, snapshot
from pipeline.snapshots.errors import naming
from tests.support.mpiexec import assert_on_ranks
from tests.support.snapshot_training import BATCHES, Run


def trainer_of(run, out):
    iterator = SerialIterator(BATCHES, 1) if run.pipe.is_first else None
    return Trainer(PipelineUpdater(iterator, run.optimizers[0], run.pipe), out=out)


def save(run, out, name):
    trainer = trainer_of(run, out)
    # As if it ran.
    trainer._start_at = time.time()
    run.save(f"{out}/{name}", {"trainer": trainer})


def resume(run, out):
    """Returns the extension after it has resumed."""
    extension = snapshot("{.updater.iteration}", resume="auto")
    extension.initialize(trainer_of(run, out))
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


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def files_with_changed_bytes(comm, folder):
    """Each is passed over, whichever rank finds it, and the next older one is taken."""
    run = Run(comm, "2")
    damages = [None, "stage-0.npz", "stage-1.npz", "common.npz"]
    for iteration, damage in enumerate(damages):
        save(run, folder, iteration)
        comm.Barrier()
        if comm.rank == 0 and damage is not None:
            change_a_byte(Path(folder, str(iteration), damage))
    comm.Barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        extension = resume(run, folder)
    assert extension.resumed_from == Path(folder, "0")
    words = [str(each.message) for each in caught if "passed" in str(each.message)]
    assert len(words) == (3 if comm.rank == 0 else 0), words
    for iteration, message in zip((3, 2, 1), words):
        assert f"{folder}/{iteration}/{damages[iteration]} was changed" in message
    # If none is whole, the run begins anew, with warnings.
    if comm.rank == 0:
        change_a_byte(Path(folder, "0", "stage-1.npz"))
    comm.Barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert resume(run, folder).resumed_from is None


def a_file_that_cannot_be_read(comm, folder):
    """With one rank's disk failing all ranks get the same."""
    run = Run(comm, "2")
    save(run, folder, 0)
    verify = Snapshot.verify

    def failing(snapshot, names=None):
        if comm.rank == 1:
            with naming(snapshot.path / "stage-0.npz", "read"):
                raise OSError(5, "Input/output error")
        verify(snapshot, names)

    Snapshot.verify = failing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(SnapshotError, match="stage-0.npz: Input/output") as caught:
            resume(run, folder)
    Snapshot.verify = verify
    assert len(set(comm.allgather(str(caught.value)))) == 1
    assert resume(run, folder).resumed_from == Path(folder, "0")


def on_two_ranks(comm, folder):
    for case in (
        a_directory_that_cannot_be_listed,
        files_with_changed_bytes,
        a_file_that_cannot_be_read,
    ):
        case(comm, f"{folder}/{case.__name__}")
        comm.Barrier()


def test_on_two_ranks(tmp_path):
    assert_on_ranks(2, on_two_ranks, str(tmp_path))
