"""How fast hosts are while all of them are busy, and the link between two."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Callable

import chainer
import numpy as np
from _common import quiet_barrier, wall_seconds
from mpi4py import MPI

from divisible import Divisible
from pipeline.message import Tensor
from pipeline.planning.phases import Phases

#: Seconds that hosts are busy at least, and the fewest rounds.
SECONDS, ROUNDS = 8.0, 2


def busy_seconds(
    comm: MPI.Comm,
    make_model: Callable[[], Divisible],
    cuts: Sequence[int],
    x: np.ndarray,
    pause: float,
) -> float:
    """Times the layers while each rank runs its part of them, again and again.

    The ranks have nothing to wait for, and run what a profile measures. A host with a
    tenth of a core finds its caches cold whenever its turn comes, and takes more than
    ten times as long as one with a whole core.

    Args:
        comm: A rank on each host.
        make_model: Makes the undivided model, in `deferred_init` if it is large.
        cuts: Which layers each rank runs.
        x: A microbatch for the first layer; the others get random numbers.
        pause: Seconds between two looks of a rank that waits for the others.

    Returns:
        Seconds of a microbatch forward and backward through all layers: the sum over
        the ranks, the same on every rank.
    """
    rank = comm.rank
    stage = make_model().divide(*cuts[rank : rank + 2])
    if rank > 0:
        shape = comm.recv(source=rank - 1)
        x = np.random.RandomState(0).randn(len(x), *shape).astype(x.dtype)
    if rank + 1 < comm.size:
        with chainer.no_backprop_mode():
            comm.send(stage(x[:1]).shape[1:], rank + 1)
    inputs = Tensor(x, True) if rank > 0 else Tensor(x)
    runs = Phases(stage, stage.params, (inputs,))

    def run() -> None:
        for _, phase in runs.phases():
            phase()

    run()
    quiet_barrier(comm, pause)
    times: list[float] = []
    while len(times) < ROUNDS or sum(times) < SECONDS:
        times.append(wall_seconds(run))
    quiet_barrier(comm, pause)
    # Not the median: a quota stops a host in the middle of some rounds, not of all.
    return comm.allreduce(statistics.fmean(times))


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
