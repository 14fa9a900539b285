"""The mean of an array over hosts, computed in several ways that take turns.

A *way* is a name and the options of an `Exchange`, or ``None`` for
``MPI_Allreduce`` of float32, which computes the sum.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from benchmarks.common.perceptron import step_seconds
from benchmarks.common.probes import message_seconds
from benchmarks.common.results import alternate, quiet_barrier
from data_parallel import Exchange, measure_break_even

Way = dict[str, Any] | None
#: Seconds between two looks of a rank that waits for the others to start or end.
PAUSE = 0.005
#: Seconds that a rank may wait for another.
TIMEOUT = 300.0
#: Bytes of the message that checks whether the link is as fast as its given rate.
KNOWN_BYTES = 16 * 2**20
COUNTER = Path("/sys/class/net/eth0/statistics/tx_bytes")


class Job(NamedTuple):
    """The measurement that all ranks make.

    Attributes:
        ways: Ways by name.
        sizes: Elements of the arrays.
        rounds: Rounds of each size.
        ranks: Number of ranks on each host.
        break_even: Wire dtypes whose break-even is measured.
        are_hosts: Whether the ranks are on emulated hosts, whose links can be measured.
    """

    ways: dict[str, Way]
    sizes: list[int]
    rounds: list[int]
    ranks: int = 1
    break_even: tuple[str, ...] = ()
    are_hosts: bool = True


class Measured(NamedTuple):
    """The result for arrays of one size.

    Attributes:
        elements: Elements of the array.
        seconds: Seconds of each round, by way.
        sent: Bytes that left the first host, by way.
        parts: Seconds that the first rank took for each part of its work, by way.
    """

    elements: int
    seconds: dict[str, list[float]]
    sent: dict[str, int]
    parts: dict[str, dict[str, float]]


class Turns:
    """Ways to compute means, over the same ranks.

    Args:
        comm: The ranks.
        ways: By name.
    """

    def __init__(self, comm: MPI.Comm, ways: dict[str, Way]) -> None:
        self._comm = comm
        self._exchanges = {
            name: options and Exchange(comm, minimum=0, timeout=TIMEOUT, **options)
            for name, options in ways.items()
        }

    def measure(self, n: int, rounds: int, are_hosts: bool) -> Measured:
        """Times all ways with an array of ``n`` elements."""
        random = np.random.default_rng(self._comm.rank)
        self._original = random.standard_normal(n, np.float32)
        self._array, self._sum = (np.empty_like(self._original) for _ in range(2))
        # Weights of a model, which all replicas have.
        self._weights = np.random.default_rng(0).standard_normal(n, np.float32)
        names = {name: name for name in self._exchanges}
        sent, parts = {}, {name: [] for name in names}
        for name in names:
            # The first makes the buffers.
            self._seconds(name)
            before = self._n_sent(are_hosts)
            self._seconds(name)
            sent[name] = self._n_sent(are_hosts) - before

        def seconds_of(name: str) -> float:
            seconds = self._seconds(name)
            exchange = self._exchanges[name]
            parts[name].append(exchange.seconds if exchange else {"wire": seconds})
            return seconds

        seconds = alternate(names, rounds, seconds_of)
        return Measured(
            n,
            seconds,
            sent,
            {
                name: {
                    part: float(np.median([found[part] for found in each]))
                    for part in each[0]
                }
                for name, each in parts.items()
            },
        )

    def close(self) -> None:
        """Frees the communicators; a call of all ranks."""
        for exchange in filter(None, self._exchanges.values()):
            exchange.close()

    def _seconds(self, name: str) -> float:
        np.copyto(self._array, self._original)
        exchange = self._exchanges[name]
        return step_seconds(self._comm, lambda: self._run(exchange), PAUSE)

    def _run(self, exchange: Exchange | None) -> None:
        if exchange is None:
            self._comm.Allreduce(self._array, self._sum)
        else:
            exchange.mean([self._array], weights=[self._weights])

    def _n_sent(self, are_hosts: bool) -> int:
        """Returns the bytes that have left this host so far."""
        quiet_barrier(self._comm)
        return int(COUNTER.read_text()) if are_hosts else 0


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Runs on each rank; the answer of the first one counts."""
    return measure(MPI.COMM_WORLD, Job(**job))


def measure(comm: MPI.Comm, job: Job) -> dict[str, Any]:
    """Returns the measurements, and the seconds of a message between two hosts.

    Args:
        comm: Communicator of all ranks.
        job: Work of all ranks.
    """
    message = None
    if comm.size > job.ranks:
        # Between a rank of the first host and one of the second.
        pair = comm.Split(int(comm.rank not in (0, job.ranks)), comm.rank)
        if comm.rank in (0, job.ranks):
            message = min(message_seconds(pair, KNOWN_BYTES, 3))
        pair.Free()
        quiet_barrier(comm)
    turns = Turns(comm, job.ways)
    sizes = [
        turns.measure(n, rounds, job.are_hosts)
        for n, rounds in zip(job.sizes, job.rounds)
    ]
    turns.close()
    begin = time.perf_counter()
    found = {name: measure_break_even(comm, name) for name in job.break_even}
    return {
        "message": message,
        "sizes": sizes,
        "break_even": found,
        "break_even_seconds": time.perf_counter() - begin,
    }
