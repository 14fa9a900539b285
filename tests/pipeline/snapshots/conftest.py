"""A small run to save, for the tests of snapshots on disk."""

import warnings

import chainer.links as L
import pytest
from chainer import optimizers
from mpi4py import MPI

from divisible import Divisible, free_memory
from pipeline import Pipeline, save_snapshot, wait_for_snapshot
from tests.support.snapshot_training import Run, names_in


@pytest.fixture
def background():
    """Whether to save in the background; tests are parametrized with both."""
    return False


@pytest.fixture
def save(background, monkeypatch):
    """Saves a snapshot of a layer and its optimizer under a path, and returns that."""
    # Whatever other tests have taken at their peak, and whatever the machine has.
    monkeypatch.setattr(free_memory, "claims", lambda n_bytes: {})
    stage = Divisible(L.Linear(2, 3))
    pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=1)
    optimizer = optimizers.SGD().setup(stage)

    def start(path, **options):
        options = {"background": background, **options}
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "snapshots are written at once")
            save_snapshot(path, pipe, optimizer, **options)

    def save(path, **options):
        start(path, **options)
        wait_for_snapshot(pipe)
        return path

    save.pipe, save.optimizer, save.start = pipe, optimizer, start
    return save


@pytest.fixture
def names():
    """Lists the names in a folder."""
    return names_in


@pytest.fixture
def run(tmp_path):
    """A run of which a snapshot has been taken after two minibatches."""
    run = Run(MPI.COMM_SELF, "1")
    for i in range(2):
        run.step(i)
    run.save(tmp_path / "1", values={"epoch": 7})
    return run
