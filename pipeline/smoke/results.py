"""Results: verdicts as text, hosts for a launcher, a machine for plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from divisible import Disk, Machine
from divisible.free_memory import Claim
from divisible.planning.units import format_bytes, format_seconds
from pipeline.smoke.facts import LinkFacts, RankFacts
from pipeline.smoke.judging import Verdict
from pipeline.start.found_machine import (
    LARGE,
    network_of,
    one_for_all,
    relative_speeds,
    shared_memory,
)

HOST_COLUMNS = ("", "host", "ranks", "threads", "cores", "product", "in Chainer")
HOST_COLUMNS += ("CPU", "copies", "free", "/dev/shm", "disk reads", "writes")
LINK_COLUMNS = ("ranks", "hosts", "latency", "bandwidth")


def host_rows(verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """Returns a row of text for each host; of several ranks the slowest counts."""
    return [_row(verdict) for verdict in verdicts]


def _row(verdict: Verdict) -> tuple[str, ...]:
    ranks = verdict.ranks
    is_measured = any(rank.kernel_seconds for rank in ranks)
    word = "PASS" if verdict.passed else "FAIL"
    numbers = [rank.rank for rank in ranks]
    is_range = numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    is_range = is_range and len(numbers) > 2
    own = f"{numbers[0]}-{numbers[-1]}" if is_range else ",".join(map(str, numbers))
    if not is_measured:
        return (word, verdict.host, own, *[""] * (len(HOST_COLUMNS) - 3))
    places = [place for rank in ranks for place in rank.memory.values()]
    free = min((left for _, left in places), default=None)
    shared = [r.shared_memory for r in ranks if r.shared_memory is not None]
    return (
        word,
        verdict.host,
        own,
        str(sum(rank.threads for rank in ranks)),
        str(len({core for rank in ranks for core in rank.cores}) or ""),
        format_seconds(max(rank.kernel_seconds for rank in ranks)),
        format_seconds(max(rank.chainer_seconds for rank in ranks)),
        f"{min(rank.cpu_share for rank in ranks):.0%}",
        f"{format_bytes(min(rank.copied_bytes for rank in ranks))}/s",
        "" if free is None else format_bytes(max(free, 0)),
        format_bytes(min(shared)) if shared else "",
        *(_rate_of(ranks, name) for name in ("disk_read", "disk_write")),
    )


def _rate_of(ranks: Sequence[RankFacts], name: str) -> str:
    known = [getattr(r, name) for r in ranks if getattr(r, name) is not None]
    return f"{format_bytes(min(known))}/s" if known else ""


def link_rows(
    ranks: Sequence[RankFacts], links: Sequence[LinkFacts]
) -> list[tuple[str, ...]]:
    """Returns a row of text for each link."""
    return [
        (
            f"{link.first}-{link.second}",
            "-".join(
                dict.fromkeys(ranks[end].host for end in (link.first, link.second))
            ),
            format_seconds(link.latency),
            f"{8e-6 * link.bandwidth:.0f} Mbit/s",
        )
        for link in links
    ]


def lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yields sentences on faults, and on advice, each with the hosts that it is for."""
    for kind, before in (("faults", "FAIL "), ("advice", "advice for ")):
        hosts: dict[str, list[str]] = {}
        for verdict in verdicts:
            for sentence in getattr(verdict, kind):
                hosts.setdefault(sentence, []).append(verdict.host)
        for sentence, names in hosts.items():
            yield f"{before}{', '.join(names)}: {sentence}"


def passed_hosts(verdicts: Sequence[Verdict]) -> list[str]:
    """Returns the names of the hosts that passed."""
    return [verdict.host for verdict in verdicts if verdict.passed]


def hosts_file(verdicts: Sequence[Verdict], library: str) -> str:
    r"""Returns a file of the hosts that passed, with as many ranks as they had.

    Args:
        verdicts: The verdicts.
        library: Name of the MPI library, which decides the form.

    Example:
        >>> verdict = Verdict("a", [RankFacts(0, "a", {}), RankFacts(1, "a", {})])
        >>> hosts_file([verdict], "MPICH Version: 5"), hosts_file([verdict], "Open MPI")
        ('a:2\n', 'a slots=2\n')
    """
    between = " slots=" if "Open MPI" in library else ":"
    return "".join(
        f"{verdict.host}{between}{len(verdict.ranks)}\n"
        for verdict in verdicts
        if verdict.passed
    )


def machine_of(ranks: Sequence[RankFacts], links: Sequence[LinkFacts]) -> Machine:
    """Returns the machine of all ranks, for plans.

    Ranks that use the same memory share it. Speeds are relative to rank 0, on which
    layers are to be measured. The disk is the slowest of all.

    Args:
        ranks: Facts of all ranks, in rank order.
        links: Facts of the links; those between neighbours count.
    """
    limits = [
        {name: Claim(where, 0, left) for name, (where, left) in rank.memory.items()}
        for rank in ranks
    ]
    neighbours = [
        (link.latency, link.latency + LARGE / link.bandwidth)
        for link in links
        if link.second == link.first + 1
    ]
    disks = [rank for rank in ranks if rank.disk_read and rank.disk_write]
    disk = None
    if disks:
        disk = Disk(
            min(rank.disk_read for rank in disks),
            min(rank.disk_write for rank in disks),
        )
    return Machine(
        len(ranks),
        memory=one_for_all(shared_memory(limits)),
        network=network_of(neighbours),
        speeds=relative_speeds([rank.kernel_seconds for rank in ranks]),
        disk=disk,
    )


def as_json(verdicts: Sequence[Verdict], links: Sequence[LinkFacts]) -> dict[str, Any]:
    """Returns all facts and verdicts in a form for JSON."""
    return {
        "hosts": [
            {
                "host": verdict.host,
                "passed": verdict.passed,
                "faults": verdict.faults,
                "advice": verdict.advice,
                "ranks": [asdict(rank) for rank in verdict.ranks],
            }
            for verdict in verdicts
        ],
        "links": [asdict(link) for link in links],
    }
