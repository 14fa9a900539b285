"""Stages that take several microbatches as one, each as many as suits it.

Early layers of a convolutional network are bound by arithmetic, so small microbatches
cost them nothing. Late layers with large weights are bound by reading these, so a group
of microbatches takes them little longer than one. Here stage 1 has groups of two::

    step        0     1     2     3     4     5     6     7
    rank 0    0F0   0F1   0F2   0F3   0B0   0B1   0B2   0B3
    rank 1      .     . 1F0-1 1B0-1 1F2-3 1B2-3     .     .

A stage that waits for a group needs the stages before it to run further ahead. So a
stage holds as many microbatches as the next one, and a group more.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from divisible.schedules.actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    KINDS,
    WEIGHT,
    Action,
    ScheduleError,
)
from divisible.schedules.dependencies import NONE, locate
from divisible.schedules.groups import group_sizes
from divisible.schedules.schedule import Schedule
from divisible.schedules.weight_versions import check_one_version


class _Unit(NamedTuple):
    """An action that a rank can take, by its urgency.

    Attributes:
        place: The place of its last microbatch in the order of the rank without groups.
        stage: Its stage.
        kind: Position of its kind in `KINDS`.
        microbatches: Its microbatches.
    """

    place: int
    stage: int
    kind: int
    microbatches: range


def group_stages(schedule: Schedule, sizes: int | Sequence[int]) -> Schedule:
    """Joins consecutive microbatches in the forwards and backwards of stages.

    Ranks take actions in the order of the given schedule, as far as what they need is
    there. A forward waits while its stage holds as many microbatches as it may.

    Args:
        schedule: A valid schedule with forwards and backwards, without groups and
            recomputation.
        sizes: Number of microbatches in a group, at least 1; one number for all stages
            or one for each. The last group may be smaller.

    Returns:
        The schedule with groups; the same one if all sizes are 1.

    Raises:
        ScheduleError: If a size is less than 1, the sizes do not fit the stages, or the
            schedule has groups or recomputation, or two weight versions.

    Example:
        >>> from divisible.schedules import one_f_one_b
        >>> print(group_stages(one_f_one_b(n_stages=2, n_microbatches=4), [1, 2]))
        1f1b: 4 microbatches, 2 stages on ranks 0 1
        step        0     1     2     3     4     5     6     7
        rank 0    0F0   0F1   0F2   0F3   0B0   0B1   0B2   0B3
        rank 1      .     . 1F0-1 1B0-1 1F2-3 1B2-3     .     .
    """
    each = group_sizes(schedule, sizes)
    if each.max() == 1:
        return schedule
    check_one_version(schedule, "stage_groups")
    if schedule.count.max() > 1 or (schedule.kind == KINDS.index("R")).any():
        raise ScheduleError(
            f"schedule {schedule.name!r} has groups or recomputation already: group"
            f" the stages of one without, and recompute afterwards"
        )
    rows = _Unfolding(schedule, each.tolist()).run()
    return Schedule(rows, schedule.stage_ranks, schedule.n_microbatches, schedule.name)


class _Unfolding:
    """Unfolds a schedule with groups in time; an action takes a step a microbatch.

    Args:
        schedule: The schedule without groups.
        sizes: Number of microbatches in a group of each stage.
    """

    def __init__(self, schedule: Schedule, sizes: Sequence[int]) -> None:
        self._schedule, self._sizes = schedule, sizes
        self._limits = _limits(schedule, sizes)
        self._in_flight = [0] * schedule.n_stages
        # For each rank its ready actions, the most urgent first; forwards that have no
        # room wait in a list.
        self._ready: list[list[_Unit]] = [[] for _ in range(schedule.n_ranks)]
        # For each action the number of results that it still waits for.
        self._missing: dict[_Unit, int] = {}
        self._users: dict[tuple[int, int, int], list[_Unit]] = defaultdict(list)
        self._rows: list[list[Action]] = [[] for _ in range(schedule.n_ranks)]
        self._table = locate(schedule)
        for unit in self._units():
            needs = [*self._needs(unit)]
            self._missing[unit] = len(needs)
            for need in needs:
                self._users[need].append(unit)
            if not needs:
                self._push(unit)

    def run(self) -> list[list[Action]]:
        """Returns the actions of each rank in order."""
        ranks = self._schedule.stage_ranks
        busy = [False] * self._schedule.n_ranks
        ends: list[tuple[int, _Unit]] = []
        now = 0
        while True:
            for rank, is_busy in enumerate(busy):
                unit = None if is_busy else self._take(rank)
                if unit is not None:
                    busy[rank] = True
                    heapq.heappush(ends, (now + self._steps(unit), unit))
            if not ends:
                return self._rows
            now = ends[0][0]
            while ends and ends[0][0] == now:
                _, unit = heapq.heappop(ends)
                busy[ranks[unit.stage]] = False
                self._finish(unit)

    def _units(self) -> Iterator[_Unit]:
        schedule, table = self._schedule, self._table
        m = schedule.n_microbatches
        for stage, size in enumerate(self._sizes):
            for first in range(0, m, size):
                group = range(first, min(first + size, m))
                for row in (0, 1, 2):
                    actions = table[row, stage, group.start : group.stop]
                    if actions[0] != NONE:
                        kind = int(schedule.kind[actions[0]])
                        yield _Unit(int(actions.max()), stage, kind, group)

    def _needs(self, unit: _Unit) -> Iterator[tuple[int, int, int]]:
        """Yields the results that an action needs: row of the table, stage, number."""
        _, stage, kind, group = unit
        if kind == FORWARD:
            if stage:
                yield from ((0, stage - 1, i) for i in group)
        elif kind == WEIGHT:
            yield 1, stage, group[0]
        else:
            yield 0, stage, group[0]
            if stage < self._schedule.n_stages - 1:
                yield from ((1, stage + 1, i) for i in group)

    @staticmethod
    def _steps(unit: _Unit) -> int:
        return len(unit.microbatches) * (2 if unit.kind == BACKWARD else 1)

    def _push(self, unit: _Unit) -> None:
        rank = self._schedule.stage_ranks[unit.stage]
        heapq.heappush(self._ready[rank], unit)

    def _take(self, rank: int) -> _Unit | None:
        """Returns the most urgent action that can run now, if there is one."""
        ready, waiting, found = self._ready[rank], [], None
        while ready and found is None:
            unit = heapq.heappop(ready)
            n = len(unit.microbatches)
            has_room = self._in_flight[unit.stage] + n <= self._limits[unit.stage]
            if unit.kind != FORWARD or has_room:
                found = unit
            else:
                waiting.append(unit)
        for unit in waiting:
            heapq.heappush(ready, unit)
        if found is not None:
            _, stage, kind, group = found
            self._in_flight[stage] += len(group) if kind == FORWARD else 0
            self._rows[rank].append(
                Action.of(stage, KINDS[kind], group.start, len(group))
            )
        return found

    def _finish(self, unit: _Unit) -> None:
        _, stage, kind, group = unit
        if kind in (BACKWARD, INPUT):
            self._in_flight[stage] -= len(group)
        if kind == WEIGHT:
            return
        row = 0 if kind == FORWARD else 1
        for i in group:
            for user in self._users.pop((row, stage, i), ()):
                self._missing[user] -= 1
                if not self._missing[user]:
                    self._push(user)


def _limits(schedule: Schedule, sizes: Sequence[int]) -> list[int]:
    """Returns how many microbatches each stage may hold.

    As many as without groups, and no fewer than the next stage and a group more. So a
    stage can always send what the next one needs to go on, while that one computes.
    """
    m, limits, limit, next_size = schedule.n_microbatches, [], 0, 0
    in_flight = schedule.validate().stage_in_flight
    for peak, size in zip(reversed(in_flight), reversed(sizes)):
        limit = max(peak, limit + max(size, next_size))
        # Whole groups, up to the last one, which may be smaller.
        limit = min(-(-limit // size) * size, m)
        limits.append(limit)
        next_size = size
    return limits[::-1]


def stage_group_sizes(schedule: Schedule) -> tuple[int, ...]:
    """Returns for each stage the largest number of microbatches that it takes as one.

    Args:
        schedule: Any schedule.

    Example:
        >>> from divisible.schedules import gpipe
        >>> stage_group_sizes(group_stages(gpipe(2, 5), [1, 2]))
        (1, 2)
    """
    sizes = [1] * schedule.n_stages
    forward = schedule.kind == FORWARD
    for stage, count in zip(schedule.stage[forward], schedule.count[forward]):
        sizes[stage] = max(sizes[stage], int(count))
    return tuple(sizes)
