"""What docs/explanation/numerics.rst says of the last bit."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from mpi4py import MPI

from divisible import Divisible, Plan, deferred_init
from pipeline import Pipeline
from tests.support.mpiexec import assert_on_ranks


def train(comm, cuts, schedule):
    """Returns the losses of five steps, and the stage."""
    with deferred_init(seed=0):
        model = Divisible(
            L.Convolution2D(1, 4, 3, pad=1),
            # What this adds up depends on the order of channels in memory.
            L.BatchNormalization(4),
            F.relu,
            lambda x: F.dropout(x, 0.2),
            L.Linear(4 * 64, 50),
            F.tanh,
            L.Linear(50, 10),
        )
    stage = model.divide(*Plan(cuts).range(comm.rank))
    optimizer = chainer.optimizers.Adam().setup(stage)
    random = np.random.RandomState(1)
    losses = []
    with Pipeline(stage, comm, n_microbatches=4, schedule=schedule) as pipe:
        for _ in range(5):
            x = random.normal(size=(37, 1, 8, 8)).astype(np.float32)
            t = random.randint(0, 10, 37).astype(np.int32)
            losses.append(pipe.step(x, t)["loss"])
            optimizer.update()
    return losses, stage


def cut_and_uncut(comm):
    losses, whole = train(MPI.COMM_SELF, [0, 7], "1f1b")
    expected = dict(whole.namedparams())
    for cuts, schedule in (
        ([0, 2, 5, 7], "gpipe"),
        ([0, 1, 6, 7], "1f1b"),
        ([0, 3, 4, 7], "zb_h1"),
        ([0, 2, 3, 7], "zb_h2"),
    ):
        found, stage = train(comm, cuts, schedule)
        assert found == losses
        for path, param in stage.namedparams():
            np.testing.assert_array_equal(param.array, expected[path].array, path)


def test_neither_the_cut_nor_the_schedule_changes_a_bit():
    assert_on_ranks(3, cut_and_uncut)
