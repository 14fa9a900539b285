"""Verdicts on hosts, from facts: pure code.

A host is compared with the median of all hosts, because what is usual differs from
cluster to cluster. A few limits are absolute: memory, ``/dev/shm``, threads on cores.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from divisible.planning.units import count, format_bytes
from pipeline.smoke.facts import LinkFacts, RankFacts

#: Share of the others' speed below which a host fails.
SLOW = 0.75
#: Share of the others' bandwidth, of memory or links, below which a host fails.
NARROW = 0.5
#: Share of a core below which a line of advice follows where all hosts have as little.
BUSY = 0.8
#: Free bytes that each rank needs at least, and share of the others' below which a host
#: fails.
LEAST_MEMORY, LITTLE_MEMORY = 512 * 2**20, 0.25
#: Free bytes of ``/dev/shm`` that each rank needs at least, for messages within a host.
LEAST_SHARED = 32 * 2**20
#: Share of the others' disks below which a host fails. Rates of disks vary, and several
#: hosts may have one disk.
LAZY_DISK = 0.2
#: Seconds between clocks from which on timelines do not compare.
CLOCKS = 0.5
# Bytes per second of a disk below which advice follows.
_LEAST_DISK = 5e6
_THREADS = "OMP_NUM_THREADS"
_CORE = "of a core"
# A place with a limit of memory: words, free bytes, number of ranks in it.
_Place = tuple[str, int, int]


@dataclass(eq=False)
class Verdict:
    """The verdict on a host.

    Attributes:
        host: Name of the host.
        ranks: Facts of its ranks.
        faults: Reasons why it fails, each with what to do.
        advice: Sentences about improvements.
    """

    host: str
    ranks: list[RankFacts]
    faults: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether the host is fit for a run."""
        return not self.faults


def judge(ranks: Sequence[RankFacts], links: Sequence[LinkFacts] = ()) -> list[Verdict]:
    """Judges hosts.

    Args:
        ranks: Facts of all ranks, in rank order.
        links: Facts of links between ranks.

    Returns:
        A verdict for each host, in the order of their first ranks.

    Example:
        >>> facts = [
        ...     RankFacts(i, host, {"numpy": "2.4"}, kernel_seconds=seconds)
        ...     for i, (host, seconds) in enumerate([("a", 1.0), ("b", 1.1), ("c", 3)])
        ... ]
        >>> [verdict.passed for verdict in judge(facts)]
        [True, True, False]
        >>> judge(facts)[2].faults[0].partition(".")[0]
        'computes at 0'
    """
    hosts: dict[str, Verdict] = {}
    for rank in ranks:
        hosts.setdefault(rank.host, Verdict(rank.host, [])).ranks.append(rank)
    verdicts = list(hosts.values())
    _judge_equal(verdicts, "versions", "missing", "Install the same on all hosts")
    for verdict in verdicts:
        _judge_threads(verdict)
        _judge_memory(verdict, _places(verdict, verdicts))
    _judge_equal(verdicts, "variables", "not set", "Set it alike on all hosts")
    _judge_speed(verdicts)
    _judge_copies(verdicts)
    _judge_free_memory(verdicts)
    _judge_disks(verdicts)
    _judge_clocks(verdicts)
    _judge_links(verdicts, links)
    return verdicts


def _judge_equal(
    verdicts: Sequence[Verdict], what: str, absent: str, remedy: str
) -> None:
    """Compares versions, or variables, with those of most ranks."""
    everyone = [getattr(rank, what) for each in verdicts for rank in each.ranks]
    usual_cores = _most_common([_cores_of_a_rank(each) for each in verdicts])
    for name in dict.fromkeys(name for each in everyone for name in each):
        usual = _most_common([each.get(name) for each in everyone])
        for verdict in verdicts:
            own = {getattr(rank, what).get(name) for rank in verdict.ranks}
            is_told = any(name in fault for fault in verdict.faults)
            cores = _cores_of_a_rank(verdict)
            # A host with more or fewer cores than the others needs other threads.
            fits = name == _THREADS and own == {str(cores)} and cores != usual_cores
            if own == {usual} or is_told or fits:
                continue
            other = next(value for value in own if value != usual)
            verdict.faults.append(
                f"{name} is {other or absent}, and {usual or absent} on other ranks."
                f" {remedy}"
            )


def _cores_of_a_rank(verdict: Verdict) -> int:
    cores = {core for rank in verdict.ranks for core in rank.cores}
    return max(1, len(cores) // len(verdict.ranks))


def _judge_threads(verdict: Verdict) -> None:
    """Compares the threads of a host's ranks with the cores that these may use."""
    cores = {core for rank in verdict.ranks for core in rank.cores}
    threads = sum(rank.threads for rank in verdict.ranks)
    n_ranks = len(verdict.ranks)
    if not cores:
        return
    set_to = f"{_THREADS}={_cores_of_a_rank(verdict)}"
    now = verdict.ranks[0].variables.get(_THREADS) or "not set"
    if threads > len(cores) and n_ranks > len(cores):
        verdict.faults.append(
            f"{count(n_ranks, 'rank')} share {count(len(cores), 'core')}. Start"
            f" {count(len(cores), 'rank')} there, or bind ranks to other cores"
        )
    elif threads > len(cores):
        verdict.faults.append(
            f"{count(threads, 'thread')} of {count(n_ranks, 'rank')} share"
            f" {count(len(cores), 'core')}: {_THREADS} is {now}. Set {set_to}"
        )
    elif 2 * threads <= len(cores):
        verdict.advice.append(
            f"{len(cores) - threads} of {len(cores)} cores have no thread of products:"
            f" {_THREADS} is {now}. Start more ranks, or set {set_to}"
        )


def _places(
    verdict: Verdict, verdicts: Sequence[Verdict]
) -> list[tuple[str, int, int]]:
    everyone = Counter(
        name for each in verdicts for rank in each.ranks for name in rank.memory
    )
    return [
        (words, left, everyone[name])
        for name, (words, left) in {
            name: place for rank in verdict.ranks for name, place in rank.memory.items()
        }.items()
    ]


def _judge_memory(verdict: Verdict, places: Sequence[_Place]) -> None:
    for words, left, n_ranks in places:
        if left < LEAST_MEMORY * n_ranks:
            verdict.faults.append(
                f"{format_bytes(max(left, 0))} of memory are free for"
                f" {count(n_ranks, 'rank')} ({words}). End what uses it, or start fewer"
                f" ranks there"
            )
            break
    shared = [r.shared_memory for r in verdict.ranks if r.shared_memory is not None]
    if shared and len(verdict.ranks) > 1:
        least = min(shared)
        if least < LEAST_SHARED * len(verdict.ranks):
            verdict.faults.append(
                f"/dev/shm has {format_bytes(least)} free, and messages of"
                f" {len(verdict.ranks)} ranks need"
                f" {format_bytes(LEAST_SHARED * len(verdict.ranks))}. Remove old files"
                f" in /dev/shm, or start the container with --shm-size=1g"
            )


def _judge_speed(verdicts: Sequence[Verdict]) -> None:
    # A pipeline waits for its slowest rank.
    seconds = {v.host: max(r.kernel_seconds for r in v.ranks) for v in verdicts}
    usual = _median(1 / each for each in seconds.values() if each)
    shares = {v.host: min(r.cpu_share for r in v.ranks) for v in verdicts}
    usual_share = _median(shares.values())
    for verdict in verdicts:
        share, n = shares[verdict.host], seconds[verdict.host]
        speed = 1 / (n * usual) if n else 1.0
        gets = f"a thread gets {share:.2f} {_CORE}"
        remedy = "End other programs there, or raise the limit of CPU time (quota)"
        if any(_THREADS in fault for fault in verdict.faults):
            # With the right number of threads it may be as fast as the others.
            continue
        if speed < SLOW:
            if share < SLOW * usual_share or share < BUSY:
                why = f"{gets}. {remedy}"
            else:
                why = (
                    f"though {gets}: its cores are slower. Set its CPU governor to"
                    f" performance, or plan with --machine, which gives it less work"
                )
            verdict.faults.append(
                f"computes at {speed:.2f} of the others' speed; {why}"
            )
        elif share < SLOW * usual_share:
            verdict.faults.append(f"{gets}, and {usual_share:.2f} elsewhere. {remedy}")
        elif share < SLOW and len(verdicts) == 1:
            verdict.faults.append(f"{gets}. {remedy}")
        elif share < BUSY:
            verdict.advice.append(f"{gets}, and {usual_share:.2f} elsewhere. {remedy}")
        slower = [
            r for r in verdict.ranks if 0 < r.chainer_seconds < SLOW * r.kernel_seconds
        ]
        if slower:
            ratio = slower[0].kernel_seconds / slower[0].chainer_seconds
            verdict.advice.append(
                f"products of the kernels take {ratio:.1f} times as long as Chainer's."
                f" Run python -m chainer_kernels there, and set"
                f" CHAINER_KERNELS_PROVIDER=blas if it agrees"
            )


def _judge_copies(verdicts: Sequence[Verdict]) -> None:
    rates = [statistics.fmean(r.copied_bytes for r in v.ranks) for v in verdicts]
    usual = _median(rates)
    for verdict, rate in zip(verdicts, rates):
        if rate < NARROW * usual:
            verdict.faults.append(
                f"a rank copies {_rate(rate)} in memory, and {_rate(usual)} elsewhere."
                f" End programs that use its memory, or start fewer ranks there"
            )


def _judge_free_memory(verdicts: Sequence[Verdict]) -> None:
    free = {}
    for verdict in verdicts:
        places = _places(verdict, verdicts)
        if places:
            free[verdict] = min(max(left, 0) / n for _, left, n in places)
    usual = _median(free.values())
    for verdict, n_bytes in free.items():
        is_told = any("of memory are free" in fault for fault in verdict.faults)
        if n_bytes < LITTLE_MEMORY * usual and not is_told:
            verdict.faults.append(
                f"{format_bytes(n_bytes)} of memory are free for a rank, and"
                f" {format_bytes(usual)} elsewhere. End what uses it, or start fewer"
                f" ranks there"
            )


def _judge_disks(verdicts: Sequence[Verdict]) -> None:
    for verdict in verdicts:
        for rank in verdict.ranks:
            if rank.disk_error:
                verdict.faults.append(
                    f"the disk cannot be used: {rank.disk_error}. Make room, or set"
                    f" TMPDIR to a directory that can be written"
                )
    for name, verb in (("disk_write", "writes"), ("disk_read", "reads")):
        rates = {}
        for verdict in verdicts:
            known = [getattr(r, name) for r in verdict.ranks]
            known = [rate for rate in known if rate is not None]
            if known:
                rates[verdict] = min(known)
        remedy = "End what uses it, or set TMPDIR to a faster disk"
        usual = _median(rates.values())
        for verdict, rate in rates.items():
            found = f"its disk {verb} {_rate(rate)}, and {_rate(usual)} elsewhere."
            if rate < LAZY_DISK * usual:
                verdict.faults.append(f"{found} {remedy}")
            elif rate < NARROW * usual or rate < _LEAST_DISK:
                verdict.advice.append(f"{found} {remedy}")


def _judge_clocks(verdicts: Sequence[Verdict]) -> None:
    usual = _median(v.ranks[0].clock for v in verdicts)
    for verdict in verdicts:
        ahead = verdict.ranks[0].clock - usual
        if abs(ahead) > CLOCKS:
            word = "ahead" if ahead > 0 else "behind"
            verdict.advice.append(
                f"its clock is {abs(ahead):.1f} s {word} of the others, so times in"
                f" logs and files do not compare. Start a time service there (NTP)"
            )


def _judge_links(verdicts: Sequence[Verdict], links: Sequence[LinkFacts]) -> None:
    """Blames a host whose links to other hosts are all slow.

    If a link between two hosts is slow, and each of them has a fast one elsewhere, both
    are told of it. They are not if one of them has too little CPU time to send.
    """
    host_of = {rank.rank: verdict for verdict in verdicts for rank in verdict.ranks}
    between = [
        (host_of[link.first], host_of[link.second], link)
        for link in links
        if host_of[link.first] is not host_of[link.second]
    ]
    rates = [link.bandwidth for *_, link in between] or [0.0]
    # Among three hosts, a slow one has two of the three links.
    usual = statistics.median_high(rates) if len(rates) > 3 else max(rates)
    slow = [
        (one, other, link)
        for one, other, link in between
        if link.bandwidth < NARROW * usual
    ]
    blamed = []
    for verdict in verdicts:
        own = [link for *ends, link in between if verdict in ends]
        bad = [link for *ends, link in slow if verdict in ends]
        if bad and len(bad) == len(own):
            blamed.append((len(own), verdict, bad))
    # With several slow links a host explains those that its neighbours see once.
    blamed.sort(key=lambda each: -each[0])
    explained: list[LinkFacts] = []
    for _, verdict, bad in blamed:
        if all(link in explained for link in bad):
            continue
        explained += bad
        each = ", ".join(_bits(link.bandwidth) for link in bad)
        verdict.faults.append(
            f"its links carry {each}, and others {_bits(usual)}. Check its cable, the"
            f" port of its switch, and the speed of its network card (ethtool)"
        )
    for one, other, link in slow:
        starves = any(_CORE in f for v in (one, other) for f in v.faults)
        if link not in explained and not starves:
            for verdict, peer in ((one, other), (other, one)):
                verdict.faults.append(
                    f"its link to {peer.host} carries {_bits(link.bandwidth)}, and"
                    f" others {_bits(usual)}. Check the switches between them"
                )


def _median(values: Iterable[float]) -> float:
    """Returns the median; of two values the greater one."""
    return statistics.median_high([*values] or [0.0])


def _most_common(values: Sequence[Any]) -> Any:
    return Counter(values).most_common(1)[0][0]


def _bits(bandwidth: float) -> str:
    """Returns the bandwidth of a link as text, in bits as network cards have it."""
    return f"{8e-6 * bandwidth:.4g} Mbit/s"


def _rate(value: float) -> str:
    return f"{format_bytes(value)}/s"
