"""Builds a schedule greedily in the order of time, by one order of preference."""

from __future__ import annotations

import heapq
from collections import deque
from typing import NamedTuple

from divisible.schedules.actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    KINDS,
    WEIGHT,
    Action,
)
from divisible.schedules.costs import Costs

# Kinds of events. At the same time, results arrive before actions end.
_ARRIVAL, _END = range(2)


class Rule(NamedTuple):
    """The preferences of a free rank.

    Attributes:
        prefer: The action that goes first if a forward and a backward are ready:
            ``'backward'``, ``'forward'``, or the one that did not run last
            (``'other'``).
        make_room: Whether a pending W goes before a backward if it makes room for a
            forward that is ready.
        deep: Whether the forward of the latest stage goes first, not the one of the
            earliest microbatch.
        patient: Whether a W runs only if it ends before the next known arrival.
    """

    prefer: str
    make_room: bool
    deep: bool
    patient: bool


def build(
    costs: Costs,
    n_microbatches: int,
    limits: list[int],
    stage_ranks: list[int],
    split: bool,
    rule: Rule,
) -> list[list[Action]]:
    """Runs time forward.

    Args:
        costs: Seconds of each stage and edge.
        n_microbatches: Number of microbatches.
        limits: For each rank how many microbatches its stages may hold in total.
        stage_ranks: For each stage its rank.
        split: Whether to use I and W, not B.
        rule: The preferences of the ranks.

    Returns:
        The actions of each rank, in order.
    """
    n_stages = len(stage_ranks)
    duration = costs.durations(n_stages, n_microbatches).tolist()
    delay, delay_back = (
        (transfer + latency).tolist()
        for transfer, latency in (costs.edges(n_stages, way) for way in (True, False))
    )
    back = INPUT if split else BACKWARD
    reserve = [stage_ranks[s + 1 :].count(stage_ranks[s]) for s in range(n_stages)]
    ranks = [_Rank(rule, back, limit, reserve, duration[WEIGHT]) for limit in limits]
    of_stage = [ranks[number] for number in stage_ranks]
    for microbatch in range(n_microbatches):
        of_stage[0].deliver(FORWARD, 0, microbatch)

    now = 0.0
    events: list[tuple[float, int, int, int, int]] = []
    awake = set(ranks)
    while True:
        for rank in awake:
            chosen = None if rank.is_busy else rank.choose(now)
            if chosen is not None:
                kind, stage, microbatch = chosen
                end = now + duration[kind][stage][microbatch]
                heapq.heappush(events, (end, _END, *chosen))
        if not events:
            return [rank.actions for rank in ranks]
        now = events[0][0]
        awake.clear()
        while events and events[0][0] == now:
            _, what, kind, stage, microbatch = heapq.heappop(events)
            rank = of_stage[stage]
            awake.add(rank)
            if what == _ARRIVAL:
                heapq.heappop(rank.coming)
                rank.deliver(kind, stage, microbatch)
                continue
            rank.finish(kind, stage, microbatch)
            user = _user(kind, stage, n_stages - 1, back)
            if user is None:
                continue
            if of_stage[user[1]] is rank:
                rank.deliver(*user, microbatch)
                continue
            # The edge has the number of the earlier stage.
            along = delay if user[0] == FORWARD else delay_back
            arrival = now + along[min(stage, user[1])]
            heapq.heappush(of_stage[user[1]].coming, arrival)
            heapq.heappush(events, (arrival, _ARRIVAL, *user, microbatch))


class _Rank:
    """One rank at one time: the actions that it has run, holds, and could run next.

    Args:
        rule: The preferences of the rank.
        back: The kind of its backwards, `INPUT` or `BACKWARD`.
        limit: Number of microbatches that its stages may hold in total.
        reserve: For each stage, how many later stages of the same rank must keep room
            for one microbatch.
        weight_seconds: The duration of each W, by stage and microbatch.

    Attributes:
        actions: The actions that the rank has started, in order.
        is_busy: Whether the last of these actions is running.
        coming: A heap of the times at which results arrive.
    """

    def __init__(
        self,
        rule: Rule,
        back: int,
        limit: int,
        reserve: list[int],
        weight_seconds: list[list[float]],
    ) -> None:
        self._rule = rule
        self._back = back
        self._limit = limit
        self._reserve = reserve
        self._weight_seconds = weight_seconds
        self.actions: list[Action] = []
        self.is_busy = False
        self.coming: list[float] = []
        self._held = 0
        # Ready actions: forwards by stage; heaps of the others, with the best first.
        self._forwards: dict[int, deque[int]] = {}
        self._backwards: list[tuple[int, int]] = []
        self._weights: list[tuple[int, int]] = []

    def deliver(self, kind: int, stage: int, microbatch: int) -> None:
        """Makes an action ready."""
        if kind == FORWARD:
            self._forwards.setdefault(stage, deque()).append(microbatch)
        elif kind == WEIGHT:
            heapq.heappush(self._weights, (microbatch, stage))
        else:
            # The latest stage of a microbatch comes first: earlier stages need it.
            heapq.heappush(self._backwards, (microbatch, -stage))

    def choose(self, now: float) -> tuple[int, int, int] | None:
        """Starts the best action that is ready, and returns it."""
        chosen = self._pop_best(now)
        if chosen is not None:
            kind, stage, microbatch = chosen
            self.is_busy = True
            self._held += kind == FORWARD
            self.actions.append(Action(stage, KINDS[kind], microbatch))
        return chosen

    def finish(self, kind: int, stage: int, microbatch: int) -> None:
        """Ends the action that the rank runs."""
        self.is_busy = False
        self._held -= kind in (BACKWARD, WEIGHT)
        if kind == INPUT:
            self.deliver(WEIGHT, stage, microbatch)

    def _pop_best(self, now: float) -> tuple[int, int, int] | None:
        ready = [stage for stage, queue in self._forwards.items() if queue]
        room = [stage for stage in ready if self._has_room(stage)]
        if room and (self._prefers_forward() or not self._backwards):
            stage = min(room, key=self._forward_order)
            return FORWARD, stage, self._forwards[stage].popleft()
        is_cramped = self._rule.make_room and ready and not room and self._weights
        if self._backwards and not is_cramped:
            microbatch, minus_stage = heapq.heappop(self._backwards)
            return self._back, -minus_stage, microbatch
        if not self._weights or self._rather_waits(now):
            return None
        microbatch, stage = heapq.heappop(self._weights)
        return WEIGHT, stage, microbatch

    def _has_room(self, stage: int) -> bool:
        return self._held + 1 + self._reserve[stage] <= self._limit

    def _prefers_forward(self) -> bool:
        if self._rule.prefer == "other":
            return bool(self.actions) and self.actions[-1].kind != KINDS[FORWARD]
        return self._rule.prefer == "forward"

    def _forward_order(self, stage: int) -> tuple[int, int]:
        microbatch = self._forwards[stage][0]
        return (-stage, microbatch) if self._rule.deep else (microbatch, -stage)

    def _rather_waits(self, now: float) -> bool:
        """Returns whether something arrives before the next W would end."""
        if not self._rule.patient or self._held >= self._limit or not self.coming:
            return False
        microbatch, stage = self._weights[0]
        return self.coming[0] < now + self._weight_seconds[stage][microbatch]


def _user(kind: int, stage: int, last: int, back: int) -> tuple[int, int] | None:
    """Returns the kind and stage of the action that needs an action's result next."""
    if kind == FORWARD:
        return (back, stage) if stage == last else (FORWARD, stage + 1)
    return None if kind == WEIGHT or stage == 0 else (back, stage - 1)
