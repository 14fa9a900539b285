"""Replicas that train in several ways."""

import pytest

from benchmarks.data_parallel import networks, replicas
from benchmarks.data_parallel.networks import Network
from benchmarks.data_parallel.replicas import Job, train
from benchmarks.data_parallel.training import ALONE, CHAINERMN, WAYS
from data_parallel.units import PARTS
from tests.support.mpiexec import assert_on_ranks

NAMES = [ALONE, CHAINERMN, "fp32", "oyama2017", "int8, late"]
ROUNDS = 6


def train_some(comm):
    networks.NETWORKS["tiny"] = Network(((2,), (8,)), 4, 0.05)
    assert (replicas.ALONE, replicas.CHAINERMN) == (ALONE, CHAINERMN)
    ways = {name: {**WAYS[name], "local_size": 1, "minimum": 0} for name in NAMES}
    ways |= {ALONE: {}, CHAINERMN: {}}
    found = train(comm, Job("tiny", ways, ROUNDS, tests=True))
    assert found["parameters"] == 2 * 9 + 2 + 32 * 8 + 8 + 80 + 10
    assert found["quantile"] > 0
    for name, (seconds, parts, accuracies) in found["ways"].items():
        assert len(seconds) == ROUNDS and min(seconds) > 0
        assert list(parts) == ([] if name in (ALONE, CHAINERMN) else list(PARTS))
        assert len(accuracies) == (comm.rank == 0)
        assert all(0 <= accuracy <= 100 for accuracy in accuracies)


@pytest.mark.matrix
def test_all_ways_train():
    assert_on_ranks(2, train_some)
