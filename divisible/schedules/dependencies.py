"""The dependencies of actions, and an order in which a schedule can unfold.

Everything here works on a schedule's compact arrays: entry ``k`` of ``stage``,
``kind``, ``microbatch`` and ``count`` describes action ``k``, and rank ``r`` runs the
actions ``offsets[r]`` to ``offsets[r + 1]`` in this order. A schedule of millions of
actions costs a few NumPy calls per step, not one Python object per action.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from divisible.schedules.actions import BACKWARD, FORWARD, INPUT, RECOMPUTE, WEIGHT
from divisible.schedules.table import Table

#: Stands for "no such action" in arrays of action numbers.
NONE = -1


def locate(schedule: Table) -> np.ndarray:
    """Finds the number of every action.

    Args:
        schedule: Any schedule, complete or not.

    Returns:
        Integers of shape ``(4, n_stages, n_microbatches)``. The first axis is F, B or
        I, W, and R. An entry is the number of the action of this stage and microbatch:
        the last one where there are several, `NONE` where there is none.
    """
    table = np.full((4, schedule.n_stages, schedule.n_microbatches), NONE, np.int64)
    action, microbatch = schedule.members
    row = np.array([0, 1, 1, 2, 3])[schedule.kind[action]]
    table[row, schedule.stage[action], microbatch] = action
    return table


def latest(schedule: Table, numbers: np.ndarray) -> np.ndarray:
    """Returns for each action the largest of the numbers of its microbatches.

    The actions that a group needs are those of one stage, so they are on one rank. The
    one with the largest number runs last.

    Args:
        schedule: Any schedule.
        numbers: A number for each entry of ``schedule.members``.
    """
    if numbers.size == schedule.stage.size:
        return numbers
    return np.maximum.reduceat(numbers, np.cumsum(schedule.count) - schedule.count)


def suppliers(schedule: Table, table: np.ndarray | None = None) -> np.ndarray:
    """Returns for each action the action whose result it needs.

    ::

        F of stage s   needs   F of stage s-1
        B, I of s      needs   B or I of stage s+1 (on the last stage: its own F)
        W of stage s   needs   its own I
        R of stage s   needs   its own F

    A B or I also needs its own F, and its own R if there is one. Both are on the same
    rank, where only the position in the rank's list counts;
    `divisible.schedules.validation` checks it. A tensor of a skip connection needs no
    entry: it is sent before the results that the stages between pass on.

    Args:
        schedule: Any schedule, complete or not.
        table: The result of `locate`, if at hand.

    Returns:
        For each action the number of the action it needs, or `NONE`. A group needs an
        action for each of its microbatches; this is the last one of them.
    """
    return latest(schedule, member_suppliers(schedule, table))


def member_suppliers(schedule: Table, table: np.ndarray | None = None) -> np.ndarray:
    """Returns `suppliers` for each microbatch of each action.

    Args:
        schedule: Any schedule, complete or not.
        table: The result of `locate`, if at hand.

    Returns:
        For each entry of ``schedule.members`` the number of the action that it needs,
        or `NONE`.
    """
    if table is None:
        table = locate(schedule)
    action, microbatch = schedule.members
    needed = np.full(action.size, NONE, np.int64)
    kind, stage = schedule.kind[action], schedule.stage[action]

    later = np.flatnonzero((kind == FORWARD) & (stage > 0))
    needed[later] = table[0, stage[later] - 1, microbatch[later]]

    backward = (kind == BACKWARD) | (kind == INPUT)
    last = stage == schedule.n_stages - 1
    inner = np.flatnonzero(backward & ~last)
    needed[inner] = table[1, stage[inner] + 1, microbatch[inner]]
    turn = np.flatnonzero(backward & last)
    needed[turn] = table[0, stage[turn], microbatch[turn]]

    for own, row in ((WEIGHT, 1), (RECOMPUTE, 0)):
        found = np.flatnonzero(kind == own)
        needed[found] = table[row, stage[found], microbatch[found]]
    return needed


def receivers(schedule: Table) -> np.ndarray:
    """Returns the rank to which each action's result is sent.

    Args:
        schedule: Any schedule, complete or not.

    Returns:
        For each action the rank of the stage that needs its result. `NONE` where that
        is the same rank, or where no stage needs it.
    """
    kind, stage = schedule.kind, schedule.stage
    step = np.array([1, -1, -1, 0, 0])[kind]
    target = stage + step
    inside = (step != 0) & (target >= 0) & (target < schedule.n_stages)
    ranks = np.asarray(schedule.stage_ranks, np.int64)
    receiver = np.where(inside, ranks[np.where(inside, target, 0)], NONE)
    receiver[receiver == ranks[stage]] = NONE
    return receiver


def unit_steps(
    schedule: Table, needed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the step of each action if every action takes one step of time.

    In each step every rank runs its next action if what that action needs was
    computed in an earlier step, and idles otherwise.

    Args:
        schedule: Any schedule. Actions that are missing count as done.
        needed: The result of `suppliers`, if at hand.

    Returns:
        The step of each action, `NONE` for actions that are never reached. Then, for
        each rank, the number of its first action never reached, or `NONE` where the
        rank finishes. A rank that does not finish is in a cyclic wait.
    """
    if needed is None:
        needed = suppliers(schedule)
    step = np.full(schedule.stage.size, NONE, np.int64)
    for now, (action, _) in enumerate(_rounds(schedule, needed)):
        step[action] = now
    reached = np.bincount(
        schedule.action_ranks[step != NONE], minlength=schedule.n_ranks
    )
    first = schedule.offsets[:-1] + reached
    return step, np.where(first < schedule.offsets[1:], first, NONE)


def earliest_starts(
    schedule: Table, duration: np.ndarray, delay: np.ndarray | None = None
) -> np.ndarray:
    """Finds when each action starts if nothing waits longer than it must.

    The longest path through all actions, one round at a time as in `unit_steps`: in
    each round every rank advances by at most one action.

    Args:
        schedule: A valid schedule.
        duration: The duration of each action.
        delay: The time that each action's result takes to another rank; 0 by default.

    Returns:
        The start of each action, in the unit of ``duration``.
    """
    needed = other_rank_suppliers(schedule)
    start = np.empty(needed.size)
    # An action that needs no other one reads the extra entry.
    arrival = np.zeros(needed.size + 1)
    free = np.zeros(schedule.n_ranks)
    after = duration if delay is None else duration + delay
    for action, ranks in _rounds(schedule, needed):
        begin = np.maximum(free[ranks], arrival[needed[action]])
        start[action] = begin
        free[ranks] = begin + duration[action]
        arrival[action] = begin + after[action]
    return start


def _rounds(
    schedule: Table, needed: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the actions that can run in each round, in which ranks advance by one.

    Yields:
        The actions that run in a round, and their ranks. Actions that never can run
        are left out.
    """
    done = np.zeros(schedule.stage.size + 1, bool)
    # An action that needs no other one reads the extra entry, which is always done.
    done[-1] = True
    cursor, end = schedule.offsets[:-1].copy(), schedule.offsets[1:]
    running = np.flatnonzero(cursor < end)
    while running.size:
        action = cursor[running]
        ready = done[needed[action]]
        action, ranks = action[ready], running[ready]
        if not action.size:
            return
        yield action, ranks
        done[action] = True
        cursor[ranks] = action + 1
        running = running[cursor[running] < end[running]]


def other_rank_suppliers(schedule: Table) -> np.ndarray:
    """Returns `suppliers` without those on the same rank, where the order ensures them.

    Args:
        schedule: A valid schedule.

    Returns:
        For each action the number of the action on another rank that it needs, or
        `NONE`.
    """
    needed, rank = suppliers(schedule), schedule.action_ranks
    needed[(needed != NONE) & (rank[needed] == rank)] = NONE
    return needed
