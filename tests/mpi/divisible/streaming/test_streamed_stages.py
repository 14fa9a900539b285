"""Pipelines of streamed layers: as resident ones, and their snapshots fit both ways."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, deferred_init
from divisible.streaming import Streamed
from pipeline import Pipeline, load_snapshot, save_snapshot
from tests.support.mpiexec import assert_on_ranks

CUTS = [0, 2, 5]


def stage_of(comm, streamed):
    with deferred_init(seed=3):
        first, second = L.Linear(50, 40), L.Linear(40, 30)
        if streamed:
            first = Streamed(first, activation=F.relu, segment=7)
            second = Streamed(second, activation=F.tanh, segment=7)
        between = [F.identity, F.identity] if streamed else [F.relu, F.tanh]
        last = L.Linear(30, 5)
        model = Divisible(first, between[0], second, between[1], last)
    return model.divide(*CUTS[comm.rank : comm.rank + 2])


class Run:
    """A pipeline with its optimizer."""

    def __init__(self, comm, streamed, schedule):
        self.stage = stage_of(comm, streamed)
        self.optimizer = chainer.optimizers.Adam().setup(self.stage)
        self.pipe = Pipeline(self.stage, comm, 4, schedule=schedule)

    def steps(self, n, seed):
        random, losses = np.random.RandomState(seed), []
        for _ in range(n):
            x = random.randn(14, 50).astype("f")
            t = random.randint(0, 5, 14).astype("i")
            losses.append(self.pipe.step(x, t)["loss"])
            self.optimizer.update()
        return losses


def trains(comm, folder, schedule, debug):
    with chainer.using_config("debug", debug):
        resident, streamed = (Run(comm, each, schedule) for each in (False, True))
        wanted, found = resident.steps(20, 0), streamed.steps(20, 0)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        for number, run in enumerate((resident, streamed)):
            save_snapshot(f"{folder}/{number}", run.pipe, run.optimizer)
        others = [Run(comm, each, schedule) for each in (False, True)]
        for number, run in enumerate(others):
            # What streams loads what did not, and the other way round.
            load_snapshot(f"{folder}/{1 - number}", run.pipe, run.optimizer)
        wanted = resident.steps(3, 1)
        for run in (streamed, *others):
            np.testing.assert_allclose(run.steps(3, 1), wanted, rtol=1e-5)


@pytest.mark.parametrize("schedule, debug", [("1f1b", True), ("zb_h1", False)])
def test_trains_as_resident_stages(tmp_path, schedule, debug):
    assert_on_ranks(2, trains, str(tmp_path), schedule, debug)
