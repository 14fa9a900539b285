"""How fast hosts are that are all busy."""

import time

import numpy as np
import pytest

from benchmarks.common.perceptron import mlp
from benchmarks.common.probes import Traffic, busy_seconds
from tests.support.mpiexec import assert_on_ranks

N_SAMPLES, WIDTH = 6, 20


def probe(comm, layers_per_rank):
    start = sum(layers_per_rank[: comm.rank])
    end = start + layers_per_rank[comm.rank]
    stage = mlp(WIDTH, (sum(layers_per_rank) + 1) // 2).divide(start, end)
    x = np.zeros((N_SAMPLES, WIDTH), np.float32)
    begin = time.perf_counter()
    seconds = busy_seconds(comm, stage, x, 0.01, at_least=0.2)
    took = time.perf_counter() - begin
    assert len(seconds) == comm.size and 0 < min(seconds) <= max(seconds) < took
    assert took > 0.2
    assert all(other == seconds for other in comm.allgather(seconds))


@pytest.mark.parametrize("layers_per_rank", [[3], [1, 8], [2, 9, 2]])
def test_ranks_know_how_long_each_takes(layers_per_rank):
    assert_on_ranks(len(layers_per_rank), probe, layers_per_rank)


def count_messages(comm):
    traffic = Traffic(comm, 1 - comm.rank, 100)
    # The second of one rank may go or not; what went arrives, and no more.
    for _ in range(2 - comm.rank):
        traffic.send()
    traffic.end()
    sent = comm.allgather(traffic._n_sent)
    assert traffic._n_received == sent[1 - comm.rank] >= 1
    assert not comm.iprobe()


def test_all_messages_that_were_sent_are_taken():
    assert_on_ranks(2, count_messages)
