"""Snapshots go from a GPU to the CPU and back. Skipped without a GPU."""

import chainer
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible
from pipeline import Pipeline, load_snapshot, save_snapshot, wait_for_snapshot
from tests.support.gpu import NEEDS_GPU

pytestmark = NEEDS_GPU


def make_run(device, seed):
    np.random.seed(seed)
    # Those that are sized at their first call are so when they are loaded.
    stage = Divisible(L.Linear(None, 5), L.BatchNormalization(axis=0), L.Linear(5, 4))
    stage.to_device(device)
    optimizer = chainer.optimizers.Adam().setup(stage)
    return Pipeline(stage, MPI.COMM_SELF, n_microbatches=2), optimizer


def step(pipe, optimizer, seed):
    random = np.random.RandomState(seed)
    x, t = random.normal(size=(6, 6)), random.randint(0, 4, 6)
    loss = pipe.step(x.astype(np.float32), t.astype(np.int32))["loss"]
    optimizer.update()
    return loss


@pytest.mark.parametrize("saved_on", ["@numpy", "@cupy:0"])
@pytest.mark.parametrize("loaded_on", ["@numpy", "@cupy:0"])
@pytest.mark.parametrize("background", [False, True])
def test_from_device_to_device(tmp_path, saved_on, loaded_on, background):
    pipe, optimizer = make_run(saved_on, 1)
    for i in range(2):
        step(pipe, optimizer, i)
    save_snapshot(tmp_path / "1", pipe, optimizer, background=background)
    expected = [step(pipe, optimizer, i) for i in (2, 3)]
    wait_for_snapshot(pipe)
    resumed, its_optimizer = make_run(loaded_on, 2)
    load_snapshot(tmp_path / "1", resumed, its_optimizer)
    device = chainer.get_device(loaded_on)
    for param in resumed.stages[0].params():
        assert param.device == device
    actual = [step(resumed, its_optimizer, i) for i in (2, 3)]
    if saved_on == loaded_on:
        assert actual == expected
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
