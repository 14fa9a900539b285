"""How fast hosts are while all of them are busy, and the links between them."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, field

import chainer
import numpy as np
from _common import quiet_barrier
from mpi4py import MPI

from divisible import Divisible
from pipeline.communicator import wait
from pipeline.message import Tensor
from pipeline.planning.phases import Phases
from pipeline.progress import Progress
from pipeline.transport import Transport

#: Seconds that hosts are busy at least. Of 32 hosts the standard deviation was 5.5% of
#: the work done in 4 s, 3.4% in 15 s and 2.7% in 30 s.
SECONDS = 15.0
#: Seconds that two hosts exchange messages, about, and how often at least and at most.
DELAY_SECONDS, LEAST_ROUNDS, MOST_ROUNDS = 2.0, 3, 500
#: Rounds before: the first brings the messages' shape, and all may get memory for
#: buffers. (9.8 MB from one host with a twentieth of a core to another took 0.15 s
#: longer than their transfer when they had to, and 0.03 s after that.)
WARM_ROUNDS = 3
#: Of messages that nobody waits for; the next one counts them.
TAG = 1000
#: Seconds that a host may wait for another.
TIMEOUT = 3600.0


@dataclass(frozen=True)
class Speed:
    """What a microbatch takes on hosts that are all busy.

    Attributes:
        seconds: Forward and backward on each rank, on average, with what its messages
            take of the core.
        spread: Standard deviation of a forward's or a backward's seconds on each rank,
            as a part of their mean: the mean of both.
        core: Seconds of a core that a forward and a backward take without messages, as
            a rule: medians. Those in which a host has to stop do not count.
    """

    seconds: list[float]
    spread: list[float]
    core: list[float]


@dataclass(frozen=True)
class Turns:
    """What a rank's phases took, of one kind.

    Attributes:
        seconds: Of each, with the messages before and after.
        core: Of a core, without messages.
    """

    seconds: list[float] = field(default_factory=list)
    core: list[float] = field(default_factory=list)


def _core(kinds: list[Turns]) -> float:
    # Medians: the first finds its caches cold.
    return sum(statistics.median(turns.core) for turns in kinds)


class Traffic:
    """Messages to and from a neighbour that nobody waits for.

    They take a host's core as those of a pipeline do, at most one each way for a
    microbatch, but hold up neither end: of two hosts the slower says how many there
    are.

    Args:
        comm: Where nobody else uses the tag `TAG`.
        peer: The neighbour, which has one of these as well.
        n_bytes: Of a message.
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
        """Takes what was sent and waits for what it sent itself, as the peer does."""
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
        n_bytes = 0
        if rank + 1 < comm.size:
            with chainer.no_backprop_mode():
                shape = stage(x[:1]).shape[1:]
            comm.send(shape, rank + 1)
            n_bytes = len(x) * math.prod(shape) * x.itemsize
        # Of a message between each two neighbours.
        self._n_bytes = comm.allgather(n_bytes)[:-1]
        inputs = Tensor(x, True) if rank > 0 else Tensor(x)
        self._phases = Phases(stage, stage.params, (inputs,))
        for phase in self._halves():
            phase()

    def _halves(self) -> tuple:
        def backward() -> None:
            self._phases.backward_input()
            self._phases.backward_weight()

        return self._phases.forward, backward

    def speed(self, messages: bool = True, seconds: float = SECONDS) -> Speed:
        """Times the phases while every rank runs its own, with nothing to wait for.

        Args:
            messages: Whether as many go to and fro meanwhile as a full pipeline has.
            seconds: For how long each rank is busy at least.

        Returns:
            The same on every rank.
        """
        rank = self._comm.rank
        before, behind = (
            self._traffic(peer) if messages else None for peer in (rank - 1, rank + 1)
        )
        quiet_barrier(self._comm, self._pause)
        kinds = self._be_busy(before, behind, seconds)
        # Right away: who looks as seldom as in a barrier moves a large message piece by
        # piece for seconds, and what follows waits behind it.
        for traffic in filter(None, (before, behind)):
            traffic.end()
        quiet_barrier(self._comm, self._pause)
        # Not medians: a quota stops a host in the middle of some rounds, not of all.
        means = [statistics.fmean(turns.seconds) for turns in kinds]
        spread = statistics.fmean(
            statistics.pstdev(turns.seconds) / mean for turns, mean in zip(kinds, means)
        )
        found = self._comm.allgather((sum(means), spread, _core(kinds)))
        return Speed(*map(list, zip(*found)))

    def alone(self, seconds: float) -> list[float]:
        """Times the phases of each rank while the others sleep.

        Cores that share a cache, or are two threads of one, are faster then.

        Args:
            seconds: For how long at least, all of them together.

        Returns:
            Seconds of a core that a forward and a backward take on each rank, to be
            compared with `Speed.core`: the same on every rank.
        """
        found = 0.0
        for rank in range(self._comm.size):
            quiet_barrier(self._comm, self._pause)
            if self._comm.rank == rank:
                found = _core(self._be_busy(None, None, seconds / self._comm.size))
        quiet_barrier(self._comm, self._pause)
        return self._comm.allgather(found)

    def _traffic(self, peer: int) -> Traffic | None:
        if not 0 <= peer < self._comm.size:
            return None
        link = min(self._comm.rank, peer)
        return Traffic(self._comm, peer, self._n_bytes[link])

    def _be_busy(
        self, before: Traffic | None, behind: Traffic | None, at_least: float
    ) -> list[Turns]:
        """Returns what forward and backward took, in this order."""
        transport = Transport(self._comm, TIMEOUT)
        transport.notice([np.empty(max(self._n_bytes, default=0), np.uint8)])
        looking = 0.0

        def look() -> None:
            nonlocal looking
            start = time.thread_time()
            transport.look()
            looking += time.thread_time() - start

        forward, backward = self._halves()
        kinds = [Turns(), Turns()]
        in_turn = (
            (kinds[0], forward, before, behind),
            (kinds[1], backward, behind, before),
        )
        with Progress(look):
            while sum(sum(turns.seconds) for turns in kinds) < at_least:
                for turns, phase, source, target in in_turn:
                    start = time.perf_counter()
                    if source:
                        source.take()
                    core, looked = time.thread_time(), looking
                    phase()
                    turns.core.append(time.thread_time() - core - (looking - looked))
                    if target:
                        target.send()
                    turns.seconds.append(time.perf_counter() - start)
        return kinds

    def delays(
        self, seconds: float, bandwidth: float, computes: bool, split: bool = False
    ) -> list[float]:
        """Times messages between neighbours.

        They go to and fro between every second pair of ranks, then between the others.
        All hosts are on one machine, and so have one clock.

        Args:
            seconds: About how long a phase takes.
            bandwidth: Of the links, in bytes per second.
            computes: Whether a rank computes when it has begun to send, as with several
                microbatches: a large message then moves only when the rank looks.
            split: Whether it sends between input and weight gradients, as in ZB-H1: it
                then looks after the first layer's weight gradients, and not after the
                first forward.

        Returns:
            For each pair of neighbours the seconds from when one begins to send until
            the other, which waits, has received, without what the bandwidth explains:
            the same on every rank.
        """
        rounds = LEAST_ROUNDS
        if computes:
            n = round(DELAY_SECONDS / (4 * max(seconds, 1e-6)))
            rounds = min(max(LEAST_ROUNDS, n), MOST_ROUNDS)
        rank, ages = self._comm.rank, {}
        for parity in (0, 1):
            quiet_barrier(self._comm, self._pause)
            is_first = rank % 2 == parity
            link = rank if is_first else rank - 1
            if 0 <= link < len(self._n_bytes):
                ages[link] = self._exchange(link, is_first, rounds, computes, split)
        quiet_barrier(self._comm, self._pause)
        everywhere = self._comm.allgather(ages)
        delays = []
        for link, n_bytes in enumerate(self._n_bytes):
            found = [age for ages in everywhere for age in ages.get(link, ())]
            age = statistics.fmean(found) if found else 0.0
            delays.append(max(0.0, age - n_bytes / bandwidth))
        return delays

    def _exchange(
        self, link: int, is_first: bool, rounds: int, computes: bool, split: bool
    ) -> list[float]:
        """Returns how old messages were that this rank waited for, in seconds.

        They go as those of a pipeline do::

            first    B send F   wait   B send F   wait
            second       wait   B send F   wait   B send F

        or, if the backward is split, with I in place of B and WF in place of F.
        """
        partner = link + 1 if is_first else link
        transport = Transport(self._comm, TIMEOUT)
        sender = transport.sender(is_first, partner)
        receiver = transport.receiver(not is_first, partner)
        message = np.zeros(max(self._n_bytes[link], 8), np.uint8)
        stamp = message[:8].view(np.float64)
        forward, backward = self._halves()
        before, behind = backward, forward
        if split:
            before = self._phases.backward_input

            def behind() -> None:
                self._phases.backward_weight()
                forward()

        ages = []

        def receive() -> None:
            idle_since = time.perf_counter()
            ((received, _),) = receiver.receive(0, "the delay of messages")
            sent = received[:8].view(np.float64)[0]
            if sent > idle_since:
                ages.append(time.perf_counter() - sent)

        with Progress(transport.look):
            forward()
            for number in range(WARM_ROUNDS + rounds):
                if number == WARM_ROUNDS:
                    ages.clear()
                receiver.post(0)
                if not is_first:
                    receive()
                if computes:
                    before()
                stamp[0] = time.perf_counter()
                sender.send(0, (Tensor(message),))
                if computes:
                    behind()
                if is_first:
                    receive()
            backward()
        transport.flush()
        receiver.close()
        return ages


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
