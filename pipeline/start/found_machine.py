"""Measures the machine that a plan is made for.

::

    every rank     free memory, and its place; the time of a product         gathered
    neighbours     a message to and fro, small and large                     gathered
    every rank     the same machine: memory, speeds and links

Ranks that use the same memory share it equally. All ranks compute at the same time, as
in training. Their speeds are relative to rank 0, which measures the layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from divisible import Machine, Network
from divisible.communication.collectives import all_gather
from divisible.communication.tags import PROBE_TAG
from divisible.communication.wait_queries import WaitPlace
from divisible.communication.waiting import wait
from divisible.free_memory import Claim, claims

_PURPOSE = "to measure the machine"
# Share of the free memory to use; the rest is for other uses, which are not counted.
_SHARE = 0.9
# Side of square matrices, whose product takes about 1 ms; and seconds of repetitions.
_SIDE, _SECONDS = 384, 0.3
# Ranks, and links, are equally fast if the ratio of their seconds is above this.
_ALIKE = 0.75
_SMALL, _REPEATS = 1, 5
#: Bytes of a large message.
LARGE = 4 * 2**20


def find_machine(comm: MPI.Comm, timeout: float) -> Machine:
    """Returns the machine of some ranks; all of them must call it.

    Args:
        comm: Communicator of the ranks.
        timeout: Seconds to wait for another rank.

    Returns:
        Machine: The machine without a disk, the same on all ranks.

    Raises:
        StallError: If another rank does not answer in time.
    """
    # Ranks arrive at different times, and must compute at the same time.
    all_gather(comm, None, timeout, _PURPOSE)
    mine = claims(0), _seconds_of_a_product()
    limits, seconds = zip(*all_gather(comm, mine, timeout, _PURPOSE))
    links = all_gather(comm, _links(comm, timeout), timeout, _PURPOSE)
    return Machine(
        comm.size,
        memory=one_for_all(shared_memory(limits)),
        network=network_of(links[:-1]),
        speeds=relative_speeds(seconds),
    )


def shared_memory(everyone: Sequence[Mapping[str, Claim]]) -> list[float] | None:
    """Returns the bytes that each rank may use; ``None`` if no system tells.

    Args:
        everyone: Limits of memory on each rank, by name.

    Example:
        >>> host, own = Claim("a host", 0, 2000), Claim("a group", 0, 500)
        >>> shared_memory([{"a": host}, {"a": host, "b": own}])
        [900.0, 450.0]
    """
    shares = [
        min(
            (
                max(1.0, limit.left) * _SHARE / sum(name in each for each in everyone)
                for name, limit in theirs.items()
            ),
            default=np.inf,
        )
        for theirs in everyone
    ]
    return None if min(shares) == np.inf else shares


def relative_speeds(seconds: Sequence[float]) -> list[float] | None:
    """Returns speeds relative to the first rank; ``None`` if they hardly differ.

    Example:
        >>> relative_speeds([0.01, 0.02]), relative_speeds([0.01, 0.011])
        ([1.0, 0.5], None)
    """
    if min(seconds) / max(seconds) >= _ALIKE:
        return None
    return [_rounded(seconds[0] / each) for each in seconds]


def one_for_all(values: Sequence[float] | None) -> float | Sequence[float] | None:
    """Returns one number if all are equal.

    Example:
        >>> one_for_all([1.0, 1.0]), one_for_all([1.0, 0.5])
        (1.0, [1.0, 0.5])
    """
    is_one = values is not None and len(set(values)) == 1
    return values[0] if is_one else values


def network_of(links: Sequence[tuple[float, float]]) -> Network:
    """Returns the links between neighbouring ranks; one link if they are alike.

    Args:
        links: Seconds of a small and a large message for each pair of neighbours.

    Example:
        >>> network = network_of([(1e-5, 1.00001), (1e-5, 0.95001)])
        >>> network.bandwidth, network.latency
        (4200000.0, 1e-05)
    """
    if not links:
        return Network()
    small, large = np.array(links).T
    rates = LARGE / np.maximum(large - small, 1e-9)
    if rates.min() / rates.max() >= _ALIKE:
        return Network(_rounded(rates.min()), _rounded(small.max()))
    return Network([*map(_rounded, rates)], [*map(_rounded, small)])


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def _seconds_of_a_product(clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns the mean seconds of a product of matrices."""
    a = np.ones((_SIDE, _SIDE), np.float32)
    a @ a
    n, seconds, start = 0, 0.0, clock()
    while n == 0 or seconds < _SECONDS:
        a @ a
        n, seconds = n + 1, clock() - start
    return seconds / n


def _links(comm: MPI.Comm, timeout: float) -> tuple[float, float]:
    """Returns the seconds of a small and a large message to the next rank.

    Pairs of ranks exchange messages at the same time, first the pairs whose first rank
    is even. The last rank has no next one.
    """
    found = 0.0, 0.0
    for parity in (0, 1):
        is_first = comm.rank % 2 == parity
        peer = comm.rank + 1 if is_first else comm.rank - 1
        if 0 <= peer < comm.size:
            small, large = (
                to_and_fro(comm, peer, is_first, n_bytes, timeout)
                for n_bytes in (_SMALL, LARGE)
            )
            if is_first:
                found = small, large
    return found


def to_and_fro(
    comm: MPI.Comm,
    peer: int,
    is_first: bool,
    n_bytes: int,
    timeout: float,
    repeats: int = _REPEATS,
) -> float:
    """Returns the seconds of a message one way, the shortest of several.

    Args:
        comm: Communicator of the ranks.
        peer: The other rank, which calls this with this rank.
        is_first: Whether this rank sends first; the other one does not.
        n_bytes: Bytes of the message.
        timeout: Seconds to wait for the other rank.
        repeats: Number of messages to and fro.

    Raises:
        StallError: If the other rank does not answer in time.
    """
    message, place, seconds = np.zeros(n_bytes, np.uint8), WaitPlace(comm, peer), []

    def finish(request: Any) -> None:
        words = f"rank {peer} {_PURPOSE}"
        wait(request.Test, timeout, lambda: words, place=place)

    for _ in range(repeats):
        start = time.perf_counter()
        if is_first:
            finish(comm.Isend(message, peer, PROBE_TAG))
        finish(comm.Irecv(message, peer, PROBE_TAG))
        if not is_first:
            finish(comm.Isend(message, peer, PROBE_TAG))
        seconds.append((time.perf_counter() - start) / 2)
    return min(seconds)
