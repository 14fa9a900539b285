"""Slow links between ranks, from the times of the messages of all ranks.

A message is under way while both ends are ready for it::

    sender    |computes|sends|
    receiver  |computes |waits       |
                        |<-- under way

Clocks of hosts differ, so a link is compared with itself alone, some minibatches ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from divisible.schedules.actions import Action
from divisible.schedules.rank_program import Record
from pipeline.calls.ranks import Ranks
from pipeline.watching.status_files import Messages, RankStatus

# Numbers of samples that count as now, and that are usual before those.
_NEWEST, _OLDER, _LEAST = 5, 50, 10
# A link is slow if its messages take this many times as long as usual, and that makes
# up this share of a minibatch.
_TIMES, _SHARE = 1.5, 0.12
# A part of the lost time that a process waited for its processor.
_MOST = 0.5
# Most messages of a minibatch that a rank writes into its file.
_MOST_MESSAGES = 256


def messages_of(record: Record, ranks: Ranks, step: int, offset: float) -> Messages:
    """Returns the times of a rank's messages.

    Args:
        record (Record): Times of the operations of the rank.
        ranks (Ranks): The ranks of its pipeline.
        step (int): Number of the minibatch.
        offset (float): Seconds since 1970 when the clock of the record was 0.
    """
    sent, received, me = {}, {}, ranks.in_world(ranks.rank)
    operations = record.program.operations
    for operation, begin, end in zip(operations, record.times[::2], record.times[1::2]):
        if isinstance(operation, Action):
            continue
        if len(sent) + len(received) == _MOST_MESSAGES:
            break
        peer = ranks.in_world(operation.peer)
        what = f"{operation.action}{operation.skip}"
        if operation.direction == "send":
            sent[f"{me}>{peer} {what}"] = round(begin + offset, 6)
        else:
            times = round(begin + offset, 6), round(end + offset, 6)
            received[f"{peer}>{me} {what}"] = times
    return Messages(step, sent, received)


class SlowLink(NamedTuple):
    """A link whose messages take longer than usual.

    Attributes:
        source (int): The rank that sends.
        target (int): The rank that receives.
        times (float): How many times as long as usual the messages take.
        seconds (float): Seconds that they take longer in a minibatch.
    """

    source: int
    target: int
    times: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"the link from rank {self.source} to rank {self.target} takes"
            f" {self.times:.1f} times as long as usual for its messages,"
            f" {self.seconds:.3g} s more a step"
        )


class LinkTimes:
    """Seconds for which messages were under way, by link, so far."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], deque[float]] = {}
        self._steps: dict[tuple[int, int], int] = {}

    def clear(self) -> None:
        """Forgets all messages, such as those of other cuts."""
        self._seconds.clear()
        self._steps.clear()

    def add(self, ranks: Sequence[RankStatus]) -> None:
        """Adds the newest minibatch that both ends of a link have written.

        Args:
            ranks: The states of all ranks.
        """
        by_rank = {each.rank: each for each in ranks}
        for target in ranks:
            sources = set().union(*(each.sources for each in target.messages))
            for source in sources & by_rank.keys():
                self._add(by_rank[source], target)

    def _add(self, source: RankStatus, target: RankStatus) -> None:
        link = source.rank, target.rank
        of_target = {each.step: each for each in target.messages}
        for sending in sorted(source.messages, key=lambda m: -m.step):
            receiving = of_target.get(sending.step)
            if receiving is None or sending.step <= self._steps.get(link, -1):
                continue
            under_way = 0.0
            for name in sending.sent.keys() & receiving.received.keys():
                begin, end = receiving.received[name]
                under_way += end - max(begin, sending.sent[name])
            self._steps[link] = sending.step
            kept = self._seconds.setdefault(link, deque(maxlen=_NEWEST + _OLDER))
            kept.append(under_way)
            return

    def slow(self, ranks: Sequence[RankStatus]) -> list[SlowLink]:
        """Returns the slow links, the one with the most lost time first.

        Time in which a rank waited for its processor is not the link's.

        Args:
            ranks: The states of all ranks.
        """
        by_rank = {each.rank: each for each in ranks}
        found = []
        for (source, target), seconds in self._seconds.items():
            older = list(seconds)[:-_NEWEST]
            ends = [by_rank.get(rank) for rank in (source, target)]
            if len(older) < _LEAST or any(e is None or e.usual is None for e in ends):
                continue
            now, usual = median(list(seconds)[-_NEWEST:]), median(older)
            lost = now - usual
            step = max(end.usual.span for end in ends)
            queued = max(end.now.queued - end.usual.queued for end in ends)
            if lost < _SHARE * step or queued > _MOST * lost:
                continue
            # Clocks that differ may make the usual time negative.
            times = now / usual if usual > 0 else float("inf")
            if times >= _TIMES:
                found.append(SlowLink(source, target, min(times, 99.0), lost))
        return sorted(found, key=lambda link: -link.seconds)
