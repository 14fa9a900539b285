"""How fast hosts are while all of them are busy, and the links between them."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

import chainer
import numpy as np
from _common import quiet_barrier, wall_seconds
from mpi4py import MPI

from divisible import Divisible
from pipeline.communicator import wait
from pipeline.message import Tensor
from pipeline.planning.phases import Phases

#: Seconds that hosts are busy at least.
SECONDS = 4.0
#: Seconds that two hosts wait for each other's messages, about, and how often at most.
DELAY_SECONDS, MOST_ROUNDS = 2.0, 1000
#: Seconds that a host may wait for another.
TIMEOUT = 3600.0


@dataclass(frozen=True)
class Speed:
    """What a microbatch takes on hosts that are all busy.

    Attributes:
        seconds: Forward and backward on each rank, on average.
        spread: Standard deviation of a forward's or a backward's seconds on each rank,
            as a part of their mean: the mean of both.
    """

    seconds: list[float]
    spread: list[float]


class Load:
    """Each rank's part of a model, which it runs again and again with one microbatch.

    The ranks run what a profile measures. A host with a tenth of a core finds its
    caches cold whenever its turn comes, and takes more than ten times as long as one
    with a whole core; and one that has used its quota stops in the middle of a phase,
    or of a message.

    Args:
        comm: A rank on each host.
        stage: What this rank runs. The stages follow each other.
        x: A microbatch for the first of them; the others get random numbers.
        pause: Seconds between two looks of a rank that waits for the others.
    """

    def __init__(
        self, comm: MPI.Comm, stage: Divisible, x: np.ndarray, pause: float
    ) -> None:
        self._comm = comm
        self._pause = pause
        rank = comm.rank
        if rank > 0:
            shape = comm.recv(source=rank - 1)
            x = np.random.RandomState(0).randn(len(x), *shape).astype(x.dtype)
        n_elements = x.size
        if rank + 1 < comm.size:
            with chainer.no_backprop_mode():
                shape = stage(x[:1]).shape[1:]
            comm.send(shape, rank + 1)
            n_elements = len(x) * math.prod(shape)
        # Of a message between the first two ranks.
        self._n_bytes = (x.size if rank == 1 else n_elements) * x.itemsize
        inputs = Tensor(x, True) if rank > 0 else Tensor(x)
        self._phases = Phases(stage, stage.params, (inputs,))
        for phase in self._halves():
            phase()

    def _halves(self) -> tuple:
        def backward() -> None:
            self._phases.backward_input()
            self._phases.backward_weight()

        return self._phases.forward, backward

    def speed(self) -> Speed:
        """Times the phases while every rank runs its own, with nothing to wait for.

        Returns:
            The same on every rank.
        """
        times: tuple[list[float], ...] = ([], [])
        quiet_barrier(self._comm, self._pause)
        while sum(map(sum, times)) < SECONDS:
            for some, phase in zip(times, self._halves()):
                some.append(wall_seconds(phase))
        quiet_barrier(self._comm, self._pause)
        # Not medians: a quota stops a host in the middle of some rounds, not of all.
        means = [statistics.fmean(some) for some in times]
        spread = statistics.fmean(
            statistics.pstdev(some) / mean for some, mean in zip(times, means)
        )
        found = self._comm.allgather((sum(means), spread))
        return Speed(*map(list, zip(*found)))

    def delay(self, seconds: float, bandwidth: float) -> float:
        """Times messages between the first two ranks.

        Either waits for a message, runs a phase and sends one back, while the other
        ranks sleep. All hosts are on one machine, and so have one clock.

        Args:
            seconds: About how long a phase takes.
            bandwidth: Of the links, in bytes per second.

        Returns:
            Seconds from the end of a phase until the rank that waits for it has its
            result, without what the bandwidth explains: the same on every rank, and 0
            without others.
        """
        n = round(DELAY_SECONDS / (4 * max(seconds, 1e-6)))
        halves = self._halves() * min(max(1, n), MOST_ROUNDS)
        quiet_barrier(self._comm, self._pause)
        ages = []
        if self._comm.rank < 2 <= self._comm.size:
            ages = self._exchange(halves)
        quiet_barrier(self._comm, self._pause)
        sums, counts = zip(*self._comm.allgather((sum(ages), len(ages))))
        age = sum(sums) / max(1, sum(counts))
        return max(0.0, age - self._n_bytes / bandwidth)

    def _exchange(self, phases: tuple) -> list[float]:
        """Returns how old the messages to this rank were, in seconds."""
        partner = 1 - self._comm.rank
        is_first = partner == 1
        sent, received = (np.zeros(max(self._n_bytes, 8), np.uint8) for _ in range(2))
        stamp = sent[:8].view(np.float64)
        ages = []
        for phase in phases:
            if not is_first:
                ages.append(self._receive(received, partner))
            phase()
            stamp[0] = time.perf_counter()
            sending = self._comm.Isend(sent, partner)
            if is_first:
                ages.append(self._receive(received, partner))
            wait(sending.Test, TIMEOUT, lambda: f"rank {partner} to take a message")
        return ages

    def _receive(self, message: np.ndarray, partner: int) -> float:
        """Waits for a message as a pipeline does; returns how old it is."""
        receiving = self._comm.Irecv(message, partner)
        wait(receiving.Test, TIMEOUT, lambda: f"a message from rank {partner}")
        return time.perf_counter() - message[:8].view(np.float64)[0]


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
