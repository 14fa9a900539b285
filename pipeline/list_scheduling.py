"""Builds a schedule for given costs, greedily in the order of time."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, ScheduleError
from pipeline.schedule import Schedule
from pipeline.simulator import Costs, simulate


class _Rule(NamedTuple):
    """What a free rank prefers.

    Attributes:
        prefer: Which goes first if a forward and a backward are ready: ``'backward'``,
            ``'forward'``, or the one that did not run last (``'other'``).
        make_room: A pending W goes before a backward if it makes room for a forward
            that is ready.
        deep: Among forwards the one of the latest stage goes first, not the one of
            the earliest microbatch.
        patient: A W runs only if it ends before the next known arrival.
    """

    prefer: str
    make_room: bool
    deep: bool
    patient: bool


def list_schedule(
    costs: Costs,
    n_microbatches: int,
    memory_limit: int | Sequence[int] | None = None,
    stage_ranks: Sequence[int] | None = None,
    n_stages: int | None = None,
    split_backward: bool = True,
) -> Schedule:
    """Builds a schedule for measured costs under a limit of memory.

    Time runs from 0; whenever a rank is free it takes the best action that is ready:
    an input gradient, which other ranks wait for, else a forward if the limit allows
    it, else a pending weight gradient, which nobody waits for. This is done under
    several orders of preference, and the schedule that `simulate` finds shortest is
    returned::

        event: rank free or result arrived
          -> I (or B) ready?   take the one of the earliest microbatch
          -> F ready, and room for it and for the rest of its way on this rank?
          -> W pending?

    The limit never leads to a deadlock: a forward starts only if afterwards there is
    room for one more microbatch on each later stage of the same rank. So whatever is
    in flight can reach the last stage, and come back.

    Greedy means good, not optimal: finding the shortest schedule is NP-hard.

    Source: Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math.
    1969, for the method; Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024,
    section 3, for the idea of scheduling F, I and W by measured times.

    Args:
        costs: Seconds of each stage and edge.
        n_microbatches: Number of microbatches.
        memory_limit: How many stage-microbatches a rank may hold at once, in flight
            or with a pending W; one number for all ranks or one for each. No limit by
            default.
        stage_ranks: For each stage its rank; one stage on each rank by default.
        n_stages: Number of stages, if neither ``costs`` nor ``stage_ranks`` tells.
        split_backward: Whether to use I and W, not B.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If the number of stages is unknown or a limit is less than the
            number of stages on a rank, which a single microbatch needs.

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


def _limits(memory_limit, stage_ranks, n_ranks, n_microbatches) -> list[int]:
    if memory_limit is None:
        memory_limit = len(stage_ranks) * n_microbatches
    if isinstance(memory_limit, Sequence):
        limits = [int(limit) for limit in memory_limit]
    else:
        limits = [int(memory_limit)] * n_ranks
    if len(limits) != n_ranks:
        raise ScheduleError(
            f"memory_limit has {len(limits)} values, but there are {n_ranks} ranks"
        )
    for rank, limit in enumerate(limits):
        least = stage_ranks.count(rank)
        if limit < least:
            raise ScheduleError(
                f"rank {rank}: a memory_limit of {limit} is too little; one microbatch "
                f"on its way through the rank's stages needs {least}"
            )
    return limits


def _build(
    costs: Costs,
    n_microbatches: int,
    limits: list[int],
    stage_ranks: list[int],
    split: bool,
    rule: _Rule,
) -> list[list[Action]]:
    """Runs time forward and returns what each rank did."""
    n_stages, n_ranks = len(stage_ranks), len(limits)
    duration = costs.durations(n_stages, n_microbatches).tolist()
    transfer, latency = costs.edges(n_stages)
    delay = (transfer + latency).tolist()
    back = INPUT if split else BACKWARD
    names = {FORWARD: "F", BACKWARD: "B", INPUT: "I", WEIGHT: "W"}
    # How many later stages of the same rank must keep room for one microbatch.
    reserve = [stage_ranks[s + 1 :].count(stage_ranks[s]) for s in range(n_stages)]

    rows: list[list[Action]] = [[] for _ in limits]
    held = [0] * n_ranks
    busy = [False] * n_ranks
    # What is ready on each rank: a queue for each stage, and heaps, first is best.
    forwards: list[dict[int, deque[int]]] = [{} for _ in limits]
    backwards: list[list] = [[] for _ in limits]
    weights: list[list] = [[] for _ in limits]
    coming: list[list[float]] = [[] for _ in limits]
    events: list[tuple] = []

    def deliver(kind: int, stage: int, microbatch: int) -> None:
        """Makes an action ready on the rank of its stage."""
        rank = stage_ranks[stage]
        if kind == FORWARD:
            forwards[rank].setdefault(stage, deque()).append(microbatch)
        else:
            heapq.heappush(backwards[rank], ((microbatch, -stage), stage, microbatch))

    def send(now: float, kind: int, stage: int, microbatch: int, edge: int) -> None:
        """Hands a result to the stage that needs it next."""
        source = stage - 1 if kind == FORWARD else stage + 1
        if kind != FORWARD and stage == n_stages - 1:
            source = stage
        if stage_ranks[source] == stage_ranks[stage]:
            deliver(kind, stage, microbatch)
            return
        arrival = now + delay[edge]
        heapq.heappush(coming[stage_ranks[stage]], arrival)
        heapq.heappush(events, (arrival, 0, kind, stage, microbatch))

    def choose(rank: int, now: float) -> tuple[int, int, int] | None:
        """Takes the best ready action of a rank."""
        ready = [
            ((-stage, queue[0]) if rule.deep else (queue[0], -stage), stage)
            for stage, queue in forwards[rank].items()
            if queue
        ]
        room = [
            entry
            for entry in ready
            if held[rank] + 1 + reserve[entry[1]] <= limits[rank]
        ]
        turn = rule.prefer == "forward" or (
            rule.prefer == "other" and rows[rank] and rows[rank][-1].kind != "F"
        )
        if room and (turn or not backwards[rank]):
            stage = min(room)[1]
            return FORWARD, stage, forwards[rank][stage].popleft()
        cramped = rule.make_room and ready and not room and weights[rank]
        if backwards[rank] and not cramped:
            _, stage, microbatch = heapq.heappop(backwards[rank])
            return back, stage, microbatch
        if not weights[rank]:
            return None
        _, stage, microbatch = weights[rank][0]
        ends = now + duration[WEIGHT][stage][microbatch]
        full = held[rank] >= limits[rank]
        if rule.patient and not full and coming[rank] and coming[rank][0] < ends:
            return None
        heapq.heappop(weights[rank])
        return WEIGHT, stage, microbatch

    for microbatch in range(n_microbatches):
        deliver(FORWARD, 0, microbatch)
    heapq.heappush(events, (0.0, 2, 0, 0, 0))
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, what, kind, stage, microbatch = heapq.heappop(events)
            if what == 0:
                heapq.heappop(coming[stage_ranks[stage]])
                deliver(kind, stage, microbatch)
            elif what == 1:
                rank = stage_ranks[stage]
                busy[rank] = False
                if kind == FORWARD:
                    if stage + 1 < n_stages:
                        send(now, FORWARD, stage + 1, microbatch, stage)
                    else:
                        send(now, back, stage, microbatch, 0)
                    continue
                held[rank] -= kind in (BACKWARD, WEIGHT)
                if kind == INPUT:
                    heapq.heappush(weights[rank], (microbatch, stage, microbatch))
                if kind != WEIGHT and stage > 0:
                    send(now, back, stage - 1, microbatch, stage - 1)
        for rank in range(n_ranks):
            if busy[rank]:
                continue
            chosen = choose(rank, now)
            if chosen is None:
                continue
            kind, stage, microbatch = chosen
            busy[rank] = True
            held[rank] += kind == FORWARD
            rows[rank].append(Action(stage, names[kind], microbatch))
            end = now + duration[kind][stage][microbatch]
            heapq.heappush(events, (end, 1, kind, stage, microbatch))
    return rows
