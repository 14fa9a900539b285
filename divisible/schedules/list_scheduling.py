"""Builds a schedule for given costs under a limit of memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from divisible.number_lists import amount, numbers
from divisible.schedules.actions import BACKWARD, INPUT, WEIGHT, ScheduleError
from divisible.schedules.catalogue import placed
from divisible.schedules.costs import Costs
from divisible.schedules.greedy import Rule, build
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import simulate


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
    it. All this is done with several orders of preference. The fixed patterns of the
    catalogue with the same placement of stages and within the limit are tried as well.
    The schedule that `simulate` finds shortest is returned, so no fixed pattern is
    faster::

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
    limits = limits_of_ranks(memory_limit, stage_ranks, n_microbatches)
    found = min(
        _candidates(costs, n_microbatches, limits, stage_ranks, split_backward),
        key=lambda schedule: simulate(schedule, costs).makespan,
    )
    return Schedule(found.actions, stage_ranks, n_microbatches, "list")


def _candidates(
    costs: Costs,
    n_microbatches: int,
    limits: Sequence[int],
    stage_ranks: Sequence[int],
    split_backward: bool,
) -> Iterator[Schedule]:
    """Yields schedules within the limits; the greedy ones come first."""
    both = (False, True)
    several = len(set(stage_ranks)) < len(stage_ranks)
    for choices in itertools.product(
        ("backward", "forward", "other"),
        both if split_backward else (False,),
        both if several else (False,),
        both if split_backward else (False,),
    ):
        rule = Rule(*choices)
        rows = build(costs, n_microbatches, limits, stage_ranks, split_backward, rule)
        yield Schedule(rows, stage_ranks, n_microbatches)
    for pattern in placed(stage_ranks, n_microbatches):
        if split_backward:
            pattern = _halved(pattern)
        elif (pattern.kind == INPUT).any():
            continue
        if _is_within(pattern, limits):
            yield pattern


def _halved(schedule: Schedule) -> Schedule:
    """Returns a schedule with I and then W in place of each B."""
    is_whole = schedule.kind == BACKWARD
    times = 1 + is_whole
    kind = np.repeat(schedule.kind, times)
    kind[kind == BACKWARD] = np.tile([INPUT, WEIGHT], is_whole.sum())
    return Schedule.from_arrays(
        np.repeat(schedule.stage, times),
        kind,
        np.repeat(schedule.microbatch, times),
        np.concatenate([[0], np.cumsum(times)])[schedule.offsets],
        schedule.stage_ranks,
        schedule.n_microbatches,
    )


def _is_within(schedule: Schedule, limits: Sequence[int]) -> bool:
    """Returns whether no rank holds more microbatches of its stages than it may."""
    counts = np.bincount(schedule.stage_ranks)
    return bool(
        np.all(np.rint(np.multiply(schedule.validate().held, counts)) <= limits)
    )


def limits_of_ranks(
    memory_limit: float | Sequence[float] | None,
    stage_ranks: Sequence[int],
    n_microbatches: int,
) -> list[int]:
    """Returns how many microbatches the stages of each rank may hold in total.

    Args:
        memory_limit: See `list_schedule`.
        stage_ranks: For each stage its rank.
        n_microbatches: Number of microbatches.

    Raises:
        ScheduleError: If a limit is less than 1, or their number is not the ranks'.
    """
    n_ranks = max(stage_ranks) + 1
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
