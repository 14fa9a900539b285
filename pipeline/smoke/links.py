"""Measures the links between neighbouring ranks.

Pairs of ranks exchange messages at the same time, in three rounds, so that a rank has
one partner at a time::

    round 0    0-1   2-3   4-5
    round 1      1-2   3-4
    round 2    5-0                  a ring: each host has two links

A message is as large as the link carries in a fraction of a second, and is sent as
often as another second allows. The fastest counts: a host may stop a rank at times.
"""

from __future__ import annotations

from mpi4py import MPI

from divisible.communication.collectives import all_gather
from pipeline.smoke.facts import LinkFacts
from pipeline.start.found_machine import LARGE, to_and_fro

# Bytes of a message that shows how large the next one is to be; seconds of that one.
_TRY, _SECONDS = 2**17, 0.2
# Seconds of all of them to and fro, and their least and greatest number.
_SECONDS_OF_ALL, _LEAST, _MOST = 1.0, 3, 30
_PURPOSE = "to measure links"


def measure_links(comm: MPI.Comm, timeout: float) -> list[LinkFacts]:
    """Returns the links between neighbours, and between the last rank and the first.

    All ranks must call this.

    Args:
        comm: Communicator of the ranks.
        timeout: Seconds to wait for another rank.

    Raises:
        StallError: If another rank does not answer in time.
    """
    links = []
    for pairs in rounds(comm.size):
        own = next((pair for pair in pairs if comm.rank in pair), None)
        tried = own and _message(comm, own, _TRY, timeout)
        # Both ranks of a pair take the size that the first one found.
        found = all_gather(comm, tried and _size(tried), timeout, _PURPOSE)
        if own:
            size, repeats = found[own[0]]
            latency = _message(comm, own, 1, timeout, _MOST)
            seconds = _message(comm, own, size, timeout, repeats) - latency
            seconds = max(1e-9, seconds)
            if comm.rank == own[0]:
                links.append(LinkFacts(*own, latency, size / seconds))
        # Pairs are done at different times.
        all_gather(comm, None, timeout, _PURPOSE)
    everyone = all_gather(comm, links, timeout, _PURPOSE)
    return sorted((link for each in everyone for link in each), key=_place)


def rounds(n_ranks: int) -> list[list[tuple[int, int]]]:
    """Returns the pairs of each round.

    Example:
        >>> rounds(2), rounds(5)
        ([[(0, 1)]], [[(0, 1), (2, 3)], [(1, 2), (3, 4)], [(4, 0)]])
    """
    found = [[(r, r + 1) for r in range(start, n_ranks - 1, 2)] for start in (0, 1)]
    if n_ranks > 2:
        found.append([(n_ranks - 1, 0)])
    return [pairs for pairs in found if pairs]


def _place(link: LinkFacts) -> tuple[bool, int]:
    """Returns the place of a link in a list; the one that closes the ring is last."""
    return link.second < link.first, link.first


def _size(seconds: float) -> tuple[int, int]:
    """Returns the bytes of a message that takes long enough, and how often to send it.

    Args:
        seconds: Seconds of a message to try.
    """
    size = int(min(LARGE, max(_TRY, _SECONDS * _TRY / seconds)))
    repeats = _SECONDS_OF_ALL / (2 * seconds * size / _TRY)
    return size, int(min(_MOST, max(_LEAST, repeats)))


def _message(
    comm: MPI.Comm,
    pair: tuple[int, int],
    n_bytes: int,
    timeout: float,
    repeats: int = _LEAST,
) -> float:
    """Returns the seconds of a message from one rank of a pair to the other."""
    is_first = comm.rank == pair[0]
    return to_and_fro(comm, pair[is_first], is_first, n_bytes, timeout, repeats)
