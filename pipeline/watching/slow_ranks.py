"""Slow ranks and the causes, from the states of all ranks.

A rank is compared with itself: it is slow if it computes longer than usual, and the
others do not. Ranks that only wait for it are not slow::

             usual                     now, and the cause
    rank 0   |computes|waits |         |computes|waits       |
    rank 1   |computes|waits |         |computes    |waits   |   computes
    rank 2   |computes|waits |         |computes|queues|waits|   another program
    rank 3   |computes|waits |         |computes|reads |waits|   disk

A rank that is slow from the beginning is found if the plan predicts its seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from pipeline.watching.status_files import RankStatus
from pipeline.watching.step_seconds import NEWEST, SLOWER, StepSeconds

# A rank must take this much longer than the plan predicts, compared with the others.
# Predictions are further from the truth than earlier minibatches are.
_SLOWER_THAN_PLANNED = 1.4
# A part of the lost time from which on it is called the cause.
_MOST = 0.5
# Bytes to and from disks in a minibatch that may explain lost time.
_MANY_BYTES = 2**20
#: Sentences about the causes, by cause.
CAUSES = {
    "computes": "its layers take longer",
    "another program": "other programs have its processor",
    "disk": "it waits for a disk",
    "script": "its script takes longer between steps, or its data do",
}


class SlowRank(NamedTuple):
    """A rank for which the others wait.

    Attributes:
        rank (int): Number of the rank.
        host (str): Name of its host.
        times (float): How many times as long as the others it takes, each compared with
            what is usual for it.
        cause (str): A name of `CAUSES`.
        against (str): The times it is compared with: ``'usual'`` or ``'planned'``.
    """

    rank: int
    host: str
    times: float
    cause: str
    against: str = "usual"

    def __str__(self) -> str:
        does = "takes" if self.cause == "script" else "computes"
        return (
            f"rank {self.rank} on {self.host} {does} {self.times:.2f} times as long as"
            f" {self.against}: {CAUSES[self.cause]}"
        )


def slow_ranks(ranks: Sequence[RankStatus]) -> list[SlowRank]:
    """Returns the slow ranks, the slowest first.

    Args:
        ranks: The states of all ranks of one start.

    Example:
        >>> def state(rank, computing):
        ...     usual = StepSeconds(1.0, 0, 1, 0, 0, 2, 2, 0, 0)
        ...     now = usual._replace(computing=computing)
        ...     return RankStatus(
        ...         "job", rank, 3, 0, "a", 1, 0.0, 99, {}, now=now, usual=usual,
        ...         slowness={"computing": computing, "between": 1.0},
        ...         longer=["computing"])
        >>> print(*slow_ranks([state(0, 1.0), state(1, 1.3), state(2, 1.02)]))
        rank 1 on a computes 1.29 times as long as usual: its layers take longer
    """
    known = [each for each in ranks if each.now is not None and each.usual is not None]
    found = _slower(known, "computing") or _between(known)
    return sorted(found or _unlike_plan(ranks), key=lambda slow: -slow.times)


def _slower(known: Sequence[RankStatus], what: str) -> list[SlowRank]:
    ratios = [each.slowness.get(what, 1.0) for each in known]
    return [
        SlowRank(each.rank, each.host, times, _cause(each, what))
        for each, times in zip(known, _compared(ratios))
        if times > SLOWER and what in each.longer
    ]


def _compared(ratios: Sequence[float]) -> list[float]:
    """Returns each ratio, relative to the others'.

    Example:
        >>> _compared([1.0, 1.5]), _compared([2.0, 2.0, 2.0]), _compared([1.5])
        ([0.6666666666666666, 1.5], [1.0, 1.0, 1.0], [1.5])
    """
    found = []
    for place, ratio in enumerate(ratios):
        others = [*ratios[:place], *ratios[place + 1 :]]
        found.append(ratio / (median(others) if others else 1.0))
    return found


def _cause(status: RankStatus, what: str) -> str:
    """Returns the cause of a rank's lost time in ``what``."""
    lost = getattr(status.now, what) - getattr(status.usual, what)
    more = StepSeconds(*(now - then for now, then in zip(status.now, status.usual)))
    if more.queued >= _MOST * lost:
        return "another program"
    blocked = status.now.blocked - status.usual.blocked if what == "computing" else lost
    if more.stored >= _MANY_BYTES and blocked >= _MOST * lost:
        return "disk"
    return "computes" if what == "computing" else "script"


def _between(known: Sequence[RankStatus]) -> list[SlowRank]:
    """Returns the rank that takes longer between steps, if all others wait for it.

    Ranks may wait for others between steps as well.
    """
    found = _slower(known, "between")
    if len(found) != 1:
        return []
    rank = found[0].rank
    (mine,) = (each for each in known if each.rank == rank)
    lost = _MOST * (mine.now.between - mine.usual.between)
    # After a while the waits of the others are usual for them.
    all_wait = all(each.now.waiting >= lost for each in known if each is not mine)
    return found if all_wait and mine.now.waiting - mine.usual.waiting < lost else []


def _unlike_plan(ranks: Sequence[RankStatus]) -> list[SlowRank]:
    """Returns ranks that have always taken longer than planned."""
    known = [each for each in ranks if each.planned_seconds and each.now is not None]
    if len(known) < 2 or min(each.n_counted for each in known) < NEWEST:
        return []
    ratios = [each.now.computing / each.planned_seconds for each in known]
    return [
        SlowRank(each.rank, each.host, times, _cause_at_start(each), "planned")
        for each, times in zip(known, _compared(ratios))
        if times > _SLOWER_THAN_PLANNED
    ]


def _cause_at_start(status: RankStatus) -> str:
    lost = status.now.computing - status.planned_seconds
    return "another program" if status.now.queued >= _MOST * lost else "computes"
