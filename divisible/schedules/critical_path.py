"""The chain of events that makes a timeline as long as it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from divisible.schedules.actions import BACKWARD, FORWARD, INPUT, KINDS
from divisible.schedules.event_table import EventTable
from divisible.schedules.events import RECEIVE, SEND, WAIT

_COMPUTATIONS = tuple(range(len(KINDS)))
_MESSAGES = SEND, RECEIVE


def critical_path(timeline: EventTable) -> list[int]:
    """Finds the chain of events that decides the makespan.

    The search begins at the event that ends last, and goes back to the cause of each
    delay. That is the event before it on the same rank. Where the rank had to wait, the
    cause is the event whose result it needed. In a timeline without any waits, such as
    a predicted one, a rank had to wait where it was idle. A measured timeline has a
    wait for every message, even if the message was there already. The cause is then the
    one of the two events that ended later::

        rank 0  0F0 0F1
        rank 1      1F0 . . . 1F1     1F0, not 0F1: the path is 0F0, 1F0, 1F1

    Returns:
        The positions of the events of the chain, from first to last.
    """
    return _Search(timeline).run()


class _Search:
    """One search back through a timeline."""

    def __init__(self, timeline: EventTable) -> None:
        self._timeline = timeline
        compute = timeline.category < len(KINDS)
        stages, first = np.unique(timeline.stage[compute], return_index=True)
        ranks = timeline.rank[compute][first]
        self._stage_rank = dict(zip(stages.tolist(), ranks.tolist()))

    def run(self) -> list[int]:
        timeline = self._timeline
        if not len(timeline):
            return []
        recorded = bool((timeline.category == WAIT).any())
        # Sums of the same numbers in another order differ by rounding.
        slack = None if recorded else 1e-9 * timeline.makespan
        # A dictionary keeps the order. Clocks that disagree could lead into a circle.
        path: dict[int, None] = {}
        at: int | None = int(np.argmax(timeline.end))
        while at is not None and at not in path:
            path[at] = None
            at = self._held_up_by(at, slack)
        return list(path)[::-1]

    def _held_up_by(self, at: int, slack: float | None) -> int | None:
        timeline = self._timeline
        first = timeline.offsets[timeline.rank[at]]
        before = at - 1
        while before >= first and timeline.category[before] == WAIT:
            before -= 1
        if before < first:
            return self._cause(at)
        if slack is None:
            waited = before < at - 1
        else:
            waited = timeline.end[before] < timeline.start[at] - slack
        cause = self._cause(at) if waited else None
        if cause is None:
            return before
        was_there = slack is None and timeline.end[cause] < timeline.end[before]
        return before if was_there else cause

    def _cause(self, at: int) -> int | None:
        """Finds the event on another rank that an event waited for."""
        timeline = self._timeline
        category, stage = timeline.category[at], int(timeline.stage[at])
        start = float(timeline.start[at])
        # A group waits longest for its last microbatch.
        microbatch = int(timeline.microbatch[at] + timeline.count[at]) - 1
        if category in (SEND, RECEIVE):
            # The other rank came later, so the cause is its event before. If it
            # recorded no message, the receiver waited for the computation.
            peer, end = int(timeline.peer[at]), float(timeline.end[at])
            action = stage, (int(timeline.kind[at]),), microbatch
            twin = self._last(_MESSAGES, peer, *action, end)
            if twin is not None:
                return twin - 1 if twin > timeline.offsets[peer] else None
            if category == RECEIVE:
                return self._last(_COMPUTATIONS, peer, *action, end)
            return None
        if category == FORWARD:
            supplier, kinds = stage - 1, (FORWARD,)
        elif category in (BACKWARD, INPUT):
            supplier, kinds = stage + 1, (BACKWARD, INPUT)
        else:
            return None
        rank = self._stage_rank.get(supplier)
        if rank is None:
            return None
        return self._last(_COMPUTATIONS, rank, supplier, kinds, microbatch, start)

    def _last(
        self,
        categories: Sequence[int],
        rank: int,
        stage: int,
        kinds: Sequence[int],
        microbatch: int,
        latest: float,
    ) -> int | None:
        """Finds the last event of an action that had started at a given time."""
        timeline = self._timeline
        begin, end = timeline.offsets[rank], timeline.offsets[rank + 1]
        first = timeline.microbatch[begin:end]
        fits = (
            (timeline.stage[begin:end] == stage)
            & (first <= microbatch)
            & (microbatch < first + timeline.count[begin:end])
            & np.isin(timeline.kind[begin:end], kinds)
            & np.isin(timeline.category[begin:end], categories)
            & (timeline.start[begin:end] <= latest)
        )
        found = np.flatnonzero(fits)
        return int(begin + found[-1]) if found.size else None
