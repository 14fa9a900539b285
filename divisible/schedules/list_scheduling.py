"""Builds a schedule for given costs, greedily in the order of time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from divisible.number_lists import amount, numbers
from divisible.schedules.actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    KINDS,
    WEIGHT,
    Action,
    ScheduleError,
)
from divisible.schedules.costs import Costs
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import simulate

# Kinds of events. At the same time, results arrive before actions end.
_ARRIVAL, _END = range(2)


class _Rule(NamedTuple):
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


def list_schedule(
    costs: Costs,
    n_microbatches: int,
    memory_limit: float | Sequence[float] | None = None,
    stage_ranks: Sequence[int] | None = None,
    n_stages: int | None = None,
    split_backward: bool = True,
) -> Schedule:
    """Builds a schedule for measured costs under a limit of memory.

    Time runs from 0. Whenever a rank is free it starts the best action that is ready.
    First comes an input gradient, for which other ranks wait. Then comes a forward, if
    the limit allows it. A pending weight gradient comes last, because no rank waits for
    it. All this is done with several orders of preference. The schedule that `simulate`
    finds shortest is returned::

        event: rank free or result arrived
          -> I (or B) ready?   take the one of the earliest microbatch
          -> F ready, and room for it and for the rest of its way on this rank?
          -> W pending?

    The limit never leads to a deadlock: a forward starts only if afterwards there is
    room for one more microbatch on each later stage of the same rank. So every
    microbatch in flight can reach the last stage, and come back.

    Greedy means good, not optimal: finding the shortest schedule is NP-hard.

    Source: Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math.
    1969, for the method; Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024,
    section 3, for the idea of scheduling F, I and W by measured times.

    Args:
        costs: Seconds of each stage and edge.
        n_microbatches: Number of microbatches.
        memory_limit: Number of microbatches that a rank may hold at once, in flight or
            with a pending W; one number for all ranks or one for each. Each of a rank's
            ``n`` stages holds an ``n``-th of a microbatch. No limit by default.
        stage_ranks: For each stage its rank; one stage on each rank by default.
        n_stages: Number of stages, if neither ``costs`` nor ``stage_ranks`` has it.
        split_backward: Whether to use I and W, not B.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If the number of stages is unknown or a limit is less than 1.

    Example:
        >>> costs = Costs(forward=1, backward_input=1, backward_weight=1)
        >>> print(list_schedule(costs, n_microbatches=4, memory_limit=3, n_stages=3))
        list: 4 microbatches, 3 stages on ranks 0 1 2
        step      0   1   2   3   4   5   6   7   8   9  10  11  12  13
        rank 0  0F0 0F1 0F2   .   . 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
        rank 1    . 1F0 1F1 1F2 1I0 1W0 1I1 1W1 1F3 1I2 1W2 1I3 1W3   .
        rank 2    .   . 2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3
    """
    if stage_ranks is None:
        n_stages = costs.n_stages if n_stages is None else n_stages
        if n_stages is None:
            raise ScheduleError(
                "the number of stages is unknown; pass n_stages or stage_ranks, or "
                "costs with one value per stage"
            )
        stage_ranks = range(n_stages)
    stage_ranks = [int(rank) for rank in stage_ranks]
    if n_microbatches < 1 or not stage_ranks:
        raise ScheduleError(
            f"at least one stage and one microbatch are needed, not "
            f"{len(stage_ranks)} and {n_microbatches}"
        )
    n_ranks = max(stage_ranks) + 1
    limits = _limits(memory_limit, stage_ranks, n_ranks, n_microbatches)
    best = None
    several = len(set(stage_ranks)) < len(stage_ranks)
    for choices in itertools.product(
        ("backward", "forward", "other"),
        (False, True) if split_backward else (False,),
        (False, True) if several else (False,),
        (False, True) if split_backward else (False,),
    ):
        rule = _Rule(*choices)
        rows = _build(costs, n_microbatches, limits, stage_ranks, split_backward, rule)
        schedule = Schedule(rows, stage_ranks, n_microbatches, "list")
        makespan = simulate(schedule, costs).makespan
        if best is None or makespan < best[0]:
            best = makespan, schedule
    return best[1]


def _limits(
    memory_limit: float | Sequence[float] | None,
    stage_ranks: Sequence[int],
    n_ranks: int,
    n_microbatches: int,
) -> list[int]:
    """Returns how many microbatches the stages of each rank may hold in total."""
    if memory_limit is None:
        memory_limit = n_microbatches
    given = numbers("memory_limit", memory_limit)
    if given.ndim and given.shape != (n_ranks,):
        raise ScheduleError(
            f"memory_limit has {amount(given)}, but there are {n_ranks} ranks: give one"
            f" number for all or one for each"
        )
    limits = np.broadcast_to(given, n_ranks).tolist()
    for rank, limit in enumerate(limits):
        if not limit >= 1:
            raise ScheduleError(
                f"rank {rank}: a memory_limit of {limit:g} is too little; one "
                f"microbatch on its way through the rank's stages needs 1"
            )
    # Rounding must not lose a stage: a third of three stages is one stage.
    return [
        math.floor(min(limit, n_microbatches) * stage_ranks.count(rank) + 1e-6)
        for rank, limit in enumerate(limits)
    ]


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
        rule: _Rule,
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


def _build(
    costs: Costs,
    n_microbatches: int,
    limits: list[int],
    stage_ranks: list[int],
    split: bool,
    rule: _Rule,
) -> list[list[Action]]:
    """Runs time forward and returns the actions of each rank."""
    n_stages = len(stage_ranks)
    duration = costs.durations(n_stages, n_microbatches).tolist()
    transfer, latency = costs.edges(n_stages)
    delay = (transfer + latency).tolist()
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
            arrival = now + delay[min(stage, user[1])]
            heapq.heappush(of_stage[user[1]].coming, arrival)
            heapq.heappush(events, (arrival, _ARRIVAL, *user, microbatch))


def _user(kind: int, stage: int, last: int, back: int) -> tuple[int, int] | None:
    """Returns the kind and stage of the action that needs an action's result next."""
    if kind == FORWARD:
        return (back, stage) if stage == last else (FORWARD, stage + 1)
    return None if kind == WEIGHT or stage == 0 else (back, stage - 1)
