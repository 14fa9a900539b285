"""Proves a schedule complete, dependency-correct and free of deadlock."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from divisible.schedules.actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    KINDS,
    RECOMPUTE,
    WEIGHT,
    Action,
    ScheduleError,
)
from divisible.schedules.dependencies import (
    NONE,
    latest,
    locate,
    suppliers,
    unit_steps,
)
from divisible.schedules.grid import draw, grid_steps
from divisible.schedules.held import Report, report
from divisible.schedules.table import Table
from divisible.schedules.weight_versions import n_carried, turns, unrolled

# How much of a large grid an error shows around the fault.
_SHOWN_RANKS = 16
_SHOWN_STEPS = 24


def validate(schedule: Table) -> Report:
    """Proves that a schedule can run.

    The checks, in this order, are:

    - Every action is on the rank that holds its stage.
    - Every stage runs every microbatch exactly once forward, and backward either as one
      B or as I and W. A schedule for evaluation has no backward at all.
    - On each stage F, R and B or I take the same groups of microbatches, since a group
      has one graph. A group of W takes whole groups of I.
    - On each rank F comes before R, R before B or I, and I before W. If one stage needs
      a result of another stage on the same rank, it runs later.
    - No ranks wait for each other in a circle.
    - With two weight versions, each rank has one stage and whole backwards (B), and no
      minibatch waits for a later one.

    `divisible.schedules.lowering.lower` then yields messages that cannot deadlock even
    when every send and receive blocks.

    Args:
        schedule: The schedule.

    Returns:
        The peaks of the activations and weight gradients that the schedule holds.

    Raises:
        ScheduleError: The message names rank, action and reason and shows the grid
            around the fault.

    Example:
        >>> from divisible.schedules.schedule import Schedule
        >>> Schedule([["0F0", "0B0"], ["1F0", "1B0"]]).validate().in_flight
        (1.0, 1.0)
        >>> try:
        ...     Schedule([["0F0", "0B0"], ["1B0", "1F0"]]).validate()
        ... except ScheduleError as error:
        ...     print(error)
        rank 1: 1B0 runs before 1F0, whose result it needs
        schedule: 1 microbatch, 2 stages on ranks 0 1
        step        0     1     2
        rank 0    0F0   0B0     .
        rank 1      . !1B0! !1F0!
    """
    _check_ranks(schedule)
    table = locate(schedule)
    _check_complete(schedule, table)
    _check_groups(schedule, table)
    needed = suppliers(schedule, table)
    _check_rank_order(schedule, table, needed)
    _check_progress(schedule, needed)
    if schedule.weight_versions > 1:
        _check_versions(schedule, table)
    return report(schedule)


def _check_ranks(schedule: Table) -> None:
    rank = schedule.action_ranks
    home = np.asarray(schedule.stage_ranks, np.int64)[schedule.stage]
    wrong = np.flatnonzero(rank != home)
    if wrong.size:
        raise _fault(
            schedule,
            wrong[:1],
            f"rank {rank[wrong[0]]}: {schedule.action(wrong[0])} is on the wrong rank; "
            f"stage {schedule.stage[wrong[0]]} is held by rank {home[wrong[0]]}",
        )


def _check_complete(schedule: Table, table: np.ndarray) -> None:
    n_stages, n_microbatches = schedule.n_stages, schedule.n_microbatches
    action, microbatch = schedule.members
    # One number per (stage, kind, microbatch).
    number = (
        schedule.stage[action].astype(np.int64) * len(KINDS) + schedule.kind[action]
    ) * n_microbatches + microbatch
    count = np.bincount(number, minlength=n_stages * len(KINDS) * n_microbatches)
    twice = np.flatnonzero(count > 1)
    if twice.size:
        found = action[number == twice[0]]
        raise _fault(
            schedule,
            found,
            f"rank {schedule.action_ranks[found[0]]}: "
            f"{_single(schedule, twice[0])} is there {found.size} times; each action "
            f"runs once",
        )
    done = count.reshape(n_stages, len(KINDS), n_microbatches).astype(bool)
    whole, first, second = done[:, BACKWARD], done[:, INPUT], done[:, WEIGHT]
    mixed = np.argwhere(whole & (first | second))
    if mixed.size:
        stage, microbatch = mixed[0]
        rank = schedule.stage_ranks[stage]
        first, number = schedule.microbatch, schedule.count
        same = (first <= microbatch) & (microbatch < first + number)
        same &= (schedule.stage == stage) & (schedule.kind != FORWARD)
        raise _fault(
            schedule,
            np.flatnonzero(same),
            f"rank {rank}: stage {stage} runs microbatch {microbatch} backward both "
            "whole (B) and in halves (I, W); use B alone, or I and W",
        )
    useless = np.argwhere(done[:, RECOMPUTE] & ~(whole | first))
    if useless.size:
        stage, microbatch = useless[0]
        raise _fault(
            schedule,
            [table[3, stage, microbatch]],
            f"rank {schedule.stage_ranks[stage]}: {stage}R{microbatch} recomputes a "
            "forward for no backward; leave it out",
        )
    _require(schedule, table, done[:, FORWARD], "F")
    if schedule.kind.max(initial=FORWARD) == FORWARD:
        return
    _require(schedule, table, whole | first | second, "B")
    _require(schedule, table, whole | first, "I")
    _require(schedule, table, whole | second, "W")


def _require(schedule: Table, table: np.ndarray, done: np.ndarray, kind: str) -> None:
    missing = np.argwhere(~done)
    if missing.size:
        stage, microbatch = (int(value) for value in missing[0])
        others = table[:, stage, microbatch]
        instead = " (or its halves I and W)" if kind == "B" else ""
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise _fault(
            schedule,
            others[others != NONE],
            f"rank {schedule.stage_ranks[stage]}: {Action(stage, kind, microbatch)}"
            f"{instead} is missing{more}; every stage runs every microbatch",
        )


def _single(schedule: Table, number: int) -> Action:
    """Returns the action of a number per (stage, kind, microbatch)."""
    place, microbatch = divmod(int(number), schedule.n_microbatches)
    stage, kind = divmod(place, len(KINDS))
    return Action(stage, KINDS[kind], microbatch)


def _check_groups(schedule: Table, table: np.ndarray) -> None:
    """Checks that groups of one stage fit together; all actions are there."""
    if schedule.count.max(initial=1) == 1:
        return
    forward, backward, weight, again = table
    first, count = schedule.microbatch, schedule.count
    for other in (backward, again):
        differs = (first[forward] != first[other]) | (count[forward] != count[other])
        wrong = np.argwhere((other != NONE) & differs)
        if wrong.size:
            stage, microbatch = wrong[0]
            one, two = forward[stage, microbatch], other[stage, microbatch]
            raise _fault(
                schedule,
                [one, two],
                f"rank {schedule.stage_ranks[stage]}: {schedule.action(one)} and "
                f"{schedule.action(two)} take other groups of microbatches; a group is "
                f"one graph, so F, R and B or I of a stage take the same ones",
            )
    found = np.flatnonzero(schedule.kind == WEIGHT)
    stage, last = schedule.stage[found], first[found] + count[found] - 1
    begin, end = backward[stage, first[found]], backward[stage, last]
    cuts_first = first[begin] < first[found]
    wrong = np.flatnonzero(cuts_first | (first[end] + count[end] - 1 > last))
    if wrong.size:
        at = wrong[0]
        one, two = found[at], begin[at] if cuts_first[at] else end[at]
        raise _fault(
            schedule,
            [one, two],
            f"rank {schedule.action_ranks[one]}: {schedule.action(one)} takes a part "
            f"of the group {schedule.action(two)}; a W takes whole groups of I",
        )


def _check_rank_order(schedule: Table, table: np.ndarray, needed: np.ndarray) -> None:
    rank = schedule.action_ranks
    action, microbatch = schedule.members
    kind, stage = schedule.kind[action], schedule.stage[action]
    backward = (kind == BACKWARD) | (kind == INPUT)
    own = np.full((2, action.size), NONE, np.int64)
    own[:, backward] = table[(0, 3), :, :][:, stage[backward], microbatch[backward]]
    for need in (*(latest(schedule, each) for each in own), needed):
        here = (need != NONE) & (rank[need] == rank)
        wrong = np.flatnonzero(here & (need > np.arange(need.size)))
        if wrong.size:
            late, early = need[wrong[0]], wrong[0]
            raise _fault(
                schedule,
                [early, late],
                f"rank {rank[early]}: {schedule.action(early)} runs before "
                f"{schedule.action(late)}, whose result it needs",
            )


def _check_progress(schedule: Table, needed: np.ndarray) -> None:
    _, stuck = unit_steps(schedule, needed)
    blocked = np.flatnonzero(stuck != NONE)
    if not blocked.size:
        return
    rank_of = schedule.action_ranks
    # Every blocked rank waits for another blocked one, so following them must close a
    # circle. Ranks before the circle are left out of the message.
    walk = [int(blocked[0])]
    while walk.count(walk[-1]) < 2:
        walk.append(int(rank_of[needed[stuck[walk[-1]]]]))
    circle = walk[walk.index(walk[-1]) : -1]
    waits = ";\n  ".join(
        f"rank {rank} waits in {schedule.action(stuck[rank])} for "
        f"{schedule.action(needed[stuck[rank]])}, which rank "
        f"{rank_of[needed[stuck[rank]]]} runs after "
        f"{schedule.action(stuck[rank_of[needed[stuck[rank]]]])}"
        for rank in circle
    )
    raise _fault(
        schedule,
        [stuck[rank] for rank in circle],
        f"deadlock: {len(blocked)} ranks stop for ever; these wait for each other in "
        f"a circle:\n  {waits}",
    )


def _check_versions(schedule: Table, table: np.ndarray) -> None:
    """Checks a schedule with two weight versions, as one that follows itself."""
    kinds = np.flatnonzero((schedule.kind == INPUT) | (schedule.kind == WEIGHT))
    if kinds.size or schedule.count.max(initial=1) > 1:
        raise _fault(
            schedule,
            kinds[:1],
            "two weight versions need whole backwards (B), without groups of"
            " microbatches; use B, or one weight version",
        )
    if len(set(schedule.stage_ranks)) < schedule.n_stages:
        raise _fault(
            schedule,
            [],
            f"two weight versions need one stage on each rank, but {schedule.n_stages}"
            f" stages lie on {schedule.n_ranks} ranks",
        )
    first_carried = schedule.offsets[1:] - n_carried(schedule)
    is_carried = table[1] >= first_carried[list(schedule.stage_ranks), None]
    if is_carried[-1].any():
        late = table[1, -1, is_carried[-1]]
        raise _fault(
            schedule,
            late,
            f"the last stage runs {schedule.action(late[0])} behind another backward at"
            f" its end, where it is carried into the next minibatch; run it after its"
            f" forward",
        )
    wrong = np.argwhere(is_carried[1:] & ~is_carried[:-1])
    if wrong.size:
        stage, microbatch = wrong[0]
        one, two = table[1, stage, microbatch], table[1, stage + 1, microbatch]
        raise _fault(
            schedule,
            [one, two],
            f"rank {schedule.stage_ranks[stage]}: {schedule.action(one)} runs in its"
            f" own minibatch, but needs {schedule.action(two)}, which is carried into"
            f" the next one",
        )
    for rank in range(schedule.n_ranks):
        _, later, _ = turns(schedule, rank)
        backwards = later[schedule.kind[later] == BACKWARD]
        is_late = backwards >= first_carried[rank]
        wrong = np.flatnonzero(~is_late[:-1] & is_late[1:])
        if wrong.size:
            one, two = backwards[wrong[0] : wrong[0] + 2]
            raise _fault(
                schedule,
                [one, two],
                f"rank {rank}: {schedule.action(one)} runs before"
                f" {schedule.action(two)} of the minibatch before; run more forwards"
                f" before the first backward",
            )
    two = Table(*unrolled(schedule, 2))
    _check_rank_order(two, locate(two), suppliers(two))
    _check_progress(two, suppliers(two))


def _fault(schedule: Table, marked: Iterable[int], reason: str) -> ScheduleError:
    marked = [int(number) for number in marked]
    ranks = steps = None
    if schedule.n_ranks > _SHOWN_RANKS or len(schedule) > _SHOWN_RANKS * _SHOWN_STEPS:
        shown = {int(rank) for rank in schedule.action_ranks[marked]} or {0}
        center = min(shown)
        low = max(0, min(center - _SHOWN_RANKS // 2, schedule.n_ranks - _SHOWN_RANKS))
        ranks = range(low, min(low + _SHOWN_RANKS, schedule.n_ranks))
        middle = int(grid_steps(schedule)[marked].min()) if marked else 0
        steps = (middle - _SHOWN_STEPS // 2, middle + _SHOWN_STEPS // 2)
    return ScheduleError(f"{reason}\n{draw(schedule, marked, ranks, steps)}")
