"""The measurements of all ranks together, one after the other.

::

    every rank     versions                          gathered; the rest needs the same
    every rank     clock, at the same moment         gathered
    every rank     products, then copies in memory   all at once, as in training
    a rank a host  disk
    neighbours     messages
    rank 0         verdicts, the machine, files
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from mpi4py import MPI

from divisible.communication.collectives import all_gather
from pipeline.smoke import measuring
from pipeline.smoke.facts import LinkFacts, RankFacts
from pipeline.smoke.links import measure_links

_PURPOSE = "to measure hosts"
_VERSION = "divisible"


class Measured(NamedTuple):
    """Facts of all ranks, the same on each.

    Attributes:
        ranks: The facts of each rank; versions alone, where these differ.
        links: The facts of links; empty where versions differ.
    """

    ranks: list[RankFacts]
    links: list[LinkFacts]


def measure(comm: MPI.Comm, timeout: float) -> Measured:
    """Measures all hosts and links; all ranks must call it.

    Args:
        comm: Communicator of the ranks.
        timeout: Seconds to wait for another rank.

    Raises:
        StallError: If another rank does not answer in time.
    """

    def gather(value: Any) -> list[Any]:
        return all_gather(comm, value, timeout, _PURPOSE)

    facts: dict[str, Any] = {
        "rank": comm.rank,
        "host": measuring.host_name(),
        "versions": measuring.versions(),
        "variables": measuring.variables(),
    }
    # Plain types, which ranks of any version read.
    everyone = gather(facts)
    if len({each["versions"][_VERSION] for each in everyone}) > 1:
        return Measured([RankFacts(**each) for each in everyone], [])
    facts["clock"] = time.time()
    gather(None)
    facts.update(measuring.room())
    facts.update(measuring.compute())
    gather(None)
    facts.update(measuring.copy())
    gather(None)
    hosts = [each["host"] for each in everyone]
    if hosts.index(facts["host"]) == comm.rank:
        facts.update(measuring.disk())
    gather(None)
    links = measure_links(comm, timeout)
    return Measured([RankFacts(**each) for each in gather(facts)], links)
