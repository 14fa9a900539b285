"""How fast hosts are while all of them are busy, and the links between them."""

from __future__ import annotations

import dataclasses
import math
import time

import chainer
import numpy as np
from mpi4py import MPI

from benchmarks.common.results import quiet_barrier
from divisible import Divisible, Network, Profile
from divisible.communication.signatures import Tensor
from divisible.communication.transport import Transport
from divisible.communication.waiting import wait
from divisible.planning.layer_cost import SECONDS as TIMES
from divisible.planning.layer_cost import LayerCost
from divisible.planning.timed_phases import Phases
from pipeline.step.progress import Progress

#: Least seconds that hosts are busy. For 32 hosts the standard deviation was 5.5% of
#: the work done in 4 s, 3.4% in 15 s and 2.7% in 30 s.
SECONDS = 15.0
#: Number of times that a message goes to and fro, and bytes of one that measures the
#: bandwidth.
N_PINGS, LARGE_MESSAGE = 12, 2**22
#: Tag of messages that nobody waits for; the next one counts them.
TAG = 1000
#: Seconds that a host may wait for another.
TIMEOUT = 3600.0


class Traffic:
    """Messages to and from a neighbour that nobody waits for.

    They take a host's core as those of a pipeline do, at most one each way for a
    microbatch, but hold up neither end: the slower of two hosts determines their
    number.

    Args:
        comm: Communicator in which nobody else uses the tag `TAG`.
        peer: Rank of the neighbour, which has such an object as well.
        n_bytes: Bytes of a message.
    """

    def __init__(self, comm: MPI.Comm, peer: int, n_bytes: int) -> None:
        self._comm, self._peer = comm, peer
        self._outgoing = np.zeros(n_bytes, np.uint8)
        self._incoming = np.empty_like(self._outgoing)
        self._n_sent = self._n_received = 0
        self._sending = MPI.REQUEST_NULL
        self._receiving = self._receive()

    def _receive(self) -> MPI.Request:
        return self._comm.Irecv(self._incoming, self._peer, TAG)

    def send(self) -> None:
        """Sends a message if the one before has left."""
        if self._sending.Test():
            self._sending = self._comm.Isend(self._outgoing, self._peer, TAG)
            self._n_sent += 1

    def take(self) -> None:
        """Takes the message that has come, if there is one."""
        if self._receiving.Test():
            self._n_received += 1
            self._receiving = self._receive()

    def end(self) -> None:
        """Receives the messages of the peer, and waits for those of this rank."""
        mine, theirs = np.array([self._n_sent]), np.empty(1, int)
        counts = [
            self._comm.Isend(mine, self._peer, TAG + 1),
            self._comm.Irecv(theirs, self._peer, TAG + 1),
        ]

        def has_all() -> bool:
            self.take()
            return MPI.Request.Testall(counts) and self._n_received == theirs[0]

        wait(has_all, TIMEOUT, lambda: f"all messages of rank {self._peer}")
        wait(self._sending.Test, TIMEOUT, lambda: f"rank {self._peer} to take the last")
        self._receiving.Cancel()
        self._receiving.Wait()


def busy_seconds(
    comm: MPI.Comm,
    stage: Divisible,
    x: np.ndarray,
    pause: float,
    at_least: float = SECONDS,
) -> list[float]:
    """Times each rank's part of a model while all run theirs, repeatedly.

    The ranks run the layers as a profile does, and wait for nothing. A host with a
    tenth of a core finds its caches cold whenever its turn comes, and takes more than
    ten times as long as one with a whole core. Meanwhile as many messages as in a full
    pipeline go to and fro, which take a part of the hosts' cores.

    Args:
        comm: Communicator with a rank on each host.
        stage: Stage of this rank. The stages follow each other.
        x: Microbatch for the first stage; the others get random numbers.
        pause: Seconds between two polls of a rank that waits for the others.
        at_least: Least seconds that each rank is busy.

    Returns:
        Seconds of a microbatch forward and backward on each rank, the same on every
        rank. Means, not medians: a quota stops a host in the middle of some rounds, not
        of all.
    """
    rank = comm.rank
    if rank > 0:
        shape = comm.recv(source=rank - 1)
        x = np.random.RandomState(0).randn(len(x), *shape).astype(x.dtype)
    n_bytes = 0
    if rank + 1 < comm.size:
        with chainer.no_backprop_mode():
            shape = stage(x[:1]).shape[1:]
        comm.send(shape, rank + 1)
        n_bytes = len(x) * math.prod(shape) * x.itemsize
    # Bytes of a message between each two neighbours.
    links = comm.allgather(n_bytes)[:-1]
    before = Traffic(comm, rank - 1, links[rank - 1]) if rank > 0 else None
    behind = Traffic(comm, rank + 1, links[rank]) if rank + 1 < comm.size else None
    inputs = Tensor(x, True) if rank > 0 else Tensor(x)
    phases = Phases(stage, stage.params, (inputs,))

    def run() -> None:
        if before:
            before.take()
        phases.forward()
        if behind:
            behind.send()
            behind.take()
        phases.backward_input()
        phases.backward_weight()
        if before:
            before.send()

    transport = Transport(comm, TIMEOUT)
    transport.note_size(max(links, default=0))
    run()
    quiet_barrier(comm, pause)
    begin, n_rounds, end = time.perf_counter(), 0, -math.inf
    with Progress(transport.look):
        while end < begin + at_least:
            run()
            n_rounds, end = n_rounds + 1, time.perf_counter()
    # Right away: who looks as seldom as in a barrier moves a large message piece by
    # piece for seconds, and what follows waits behind it.
    for traffic in filter(None, (before, behind)):
        traffic.end()
    quiet_barrier(comm, pause)
    return comm.allgather((end - begin) / n_rounds)


def message_seconds(comm: MPI.Comm, n_bytes: int, rounds: int) -> list[float]:
    """Times messages between the first two ranks.

    Args:
        comm: Communicator of two ranks at least.
        n_bytes: Bytes of a message.
        rounds: Number of times that one goes to and fro.

    Returns:
        Half of the seconds of each round, the same on every rank.
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


def link(comm: MPI.Comm) -> Network:
    """Measures the link between ranks 0 and 1: latency and bandwidth."""
    latency, large = (
        min(message_seconds(comm, n_bytes, N_PINGS)) for n_bytes in (8, LARGE_MESSAGE)
    )
    return Network(LARGE_MESSAGE / max(large - latency, 1e-9), latency)


def slowed(profile: Profile, slower: float) -> Profile:
    """Returns a profile in which everything takes ``slower`` times as long."""

    def slow(layer: LayerCost) -> LayerCost:
        times = {name: slower * getattr(layer, name) for name in TIMES}
        return dataclasses.replace(layer, **times)

    layers = [slow(layer) for layer in profile.layers]
    return dataclasses.replace(profile, layers=layers, loss=slow(profile.loss))
