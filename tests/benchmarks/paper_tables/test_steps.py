"""Steps of all ways train alike."""

import numpy as np
import pytest

from benchmarks.paper_tables.points import FIG4, SERIAL, Point
from benchmarks.paper_tables.steps import NotFiniteError, Steps
from tests.support.mpiexec import assert_on_ranks

#: Hosts.
N = 3
CUTS = [0, 20, 41, 63]
#: With 25 samples in 4 microbatches the last one has 4 samples, the others 7.
WAYS = {
    schedule: Point("mlp", 16, 25, N, 4, schedule=schedule, update=True)
    for schedule in (SERIAL, FIG4, "1f1b", "zb_h1")
}


def parameters(comm, point):
    """Takes three steps and returns the parameters of all ranks."""
    # So large a learning rate that an update is seen.
    with Steps(comm, learning_rate=0.1) as made:
        step = made.get(point, CUTS)
        for _ in range(3):
            step()
        assert made.get(point, CUTS) is step
        made.check(point)
        mine = {
            path: param.array.copy()
            for stage in made._stages.values()
            for path, param in stage.namedparams()
        }
    found = {}
    for each in comm.allgather(mine):
        found.update(each)
    return found


def train_alike(comm):
    expected = parameters(comm, WAYS[SERIAL])
    assert len(expected) == 64
    for point in WAYS.values():
        found = parameters(comm, point)
        assert found.keys() == expected.keys()
        for path, array in found.items():
            np.testing.assert_allclose(array, expected[path], rtol=1e-3, atol=1e-5)


def test_every_way_trains_as_the_undivided_model():
    assert_on_ranks(N, train_alike, timeout=120)


def overflow(comm):
    point = WAYS["1f1b"]
    with Steps(comm, learning_rate=1e30) as made, np.errstate(all="ignore"):
        step = made.get(point, CUTS)
        for _ in range(3):
            step()
        with pytest.raises(NotFiniteError, match="is not finite after steps of"):
            made.check(point)


def test_parameters_that_overflow_are_refused():
    assert_on_ranks(N, overflow, timeout=120)
