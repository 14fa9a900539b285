"""What hosts are asked before a step: their speed, and how long messages take."""

import sys

import numpy as np
import pytest

from tests.mpiexec import ROOT, assert_on_ranks

N_SAMPLES, WIDTH = 6, 20


def probe(comm, layers_per_rank):
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import _probe
    from _mlp import mlp

    _probe.DELAY_SECONDS = 0.1
    start = sum(layers_per_rank[: comm.rank])
    end = start + layers_per_rank[comm.rank]
    stage = mlp(WIDTH, (sum(layers_per_rank) + 1) // 2).divide(start, end)
    x = np.zeros((N_SAMPLES, WIDTH), np.float32)
    load = _probe.Load(comm, stage, x, 0.01)
    for several in (False, True):
        speed = load.speed(messages=several, seconds=0.2)
        assert len(speed.seconds) == len(speed.spread) == comm.size
        assert len(speed.core) == comm.size and min(speed.core) > 0
        assert all(other == speed for other in comm.allgather(speed))
        alone = load.alone(seconds=0.1)
        assert len(alone) == comm.size and min(alone) > 0
        assert all(other == alone for other in comm.allgather(alone))
        for split in (False, True):
            delays = load.delays(0.001, 1e12, computes=several, split=split)
            assert len(delays) == comm.size - 1 and min(delays, default=0) >= 0


@pytest.mark.parametrize("layers_per_rank", [[3], [1, 8], [2, 9, 2]])
def test_unequal_ranks_are_asked_together(layers_per_rank):
    assert_on_ranks(len(layers_per_rank), probe, layers_per_rank)


def count_messages(comm):
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from _probe import Traffic

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
