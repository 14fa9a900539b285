"""A small run to save, for the tests of snapshots on disk."""

import chainer.links as L
import pytest
from chainer import optimizers
from mpi4py import MPI

from divisible import Divisible
from pipeline import Pipeline, save_snapshot, wait_for_snapshot


@pytest.fixture
def background():
    """Whether to save in the background; tests are parametrized with both."""
    return False


@pytest.fixture
def save(background):
    """Saves a snapshot of a layer and its optimizer under a path, and returns that."""
    stage = Divisible(L.Linear(2, 3))
    pipe = Pipeline(stage, MPI.COMM_SELF, 1)
    optimizer = optimizers.SGD().setup(stage)

    def save(path, **options):
        save_snapshot(path, pipe, optimizer, background=background, **options)
        wait_for_snapshot(pipe)
        return path

    save.pipe, save.optimizer = pipe, optimizer
    return save


@pytest.fixture
def names():
    """Lists the names in a folder."""
    return lambda folder: sorted(path.name for path in folder.iterdir())
