"""How fast hosts are while all of them are busy, and the links between them."""

from __future__ import annotations

import statistics
import time

import chainer
import numpy as np
from _common import quiet_barrier, wall_seconds
from mpi4py import MPI

from divisible import Divisible
from pipeline.message import Tensor
from pipeline.planning.phases import Phases

#: Seconds that hosts are busy at least. Of 32 hosts the standard deviation was 5.5% of
#: the work done in 4 s, 3.4% in 15 s and 2.7% in 30 s.
SECONDS = 15.0


def busy_seconds(
    comm: MPI.Comm,
    stage: Divisible,
    x: np.ndarray,
    pause: float,
    at_least: float = SECONDS,
) -> list[float]:
    """Times each rank's part of a model while all run theirs, again and again.

    The ranks have nothing to wait for, and run what a profile measures. A host with a
    tenth of a core finds its caches cold whenever its turn comes, and takes more than
    ten times as long as one with a whole core.

    Args:
        comm: A rank on each host.
        stage: What this rank runs. The stages follow each other.
        x: A microbatch for the first of them; the others get random numbers.
        pause: Seconds between two looks of a rank that waits for the others.
        at_least: For how many seconds each rank is busy at least.

    Returns:
        Seconds of a microbatch forward and backward on each rank, the same on every
        rank. Means, not medians: a quota stops a host in the middle of some rounds, not
        of all.
    """
    rank = comm.rank
    if rank > 0:
        shape = comm.recv(source=rank - 1)
        x = np.random.RandomState(0).randn(len(x), *shape).astype(x.dtype)
    if rank + 1 < comm.size:
        with chainer.no_backprop_mode():
            comm.send(stage(x[:1]).shape[1:], rank + 1)
    inputs = Tensor(x, True) if rank > 0 else Tensor(x)
    phases = Phases(stage, stage.params, (inputs,))

    def run() -> None:
        phases.forward()
        phases.backward_input()
        phases.backward_weight()

    run()
    quiet_barrier(comm, pause)
    times = [wall_seconds(run)]
    while sum(times) < at_least:
        times.append(wall_seconds(run))
    quiet_barrier(comm, pause)
    return comm.allgather(statistics.fmean(times))


def message_seconds(comm: MPI.Comm, n_bytes: int, rounds: int) -> list[float]:
    """Times messages between the first two ranks.

    Args:
        comm: Two ranks at least.
        n_bytes: Of a message.
        rounds: Times that one goes to and fro.

    Returns:
        For each round half of its seconds, the same on every rank.
    """
    buffer, times = np.zeros(n_bytes, np.uint8), []
    for _ in range(rounds):
        start = time.perf_counter()
        if comm.rank == 0:
            comm.Send(buffer, 1)
            comm.Recv(buffer, 1)
        elif comm.rank == 1:
            comm.Recv(buffer, 0)
            comm.Send(buffer, 0)
        times.append((time.perf_counter() - start) / 2)
    return comm.bcast(times)
