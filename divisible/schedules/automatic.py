"""Chooses the schedule of a pipeline by the times of its stages: ``schedule='auto'``.

::

    minibatch 1           agrees on shapes, and takes memory from the system
    minibatches 2 to 4    are timed: each stage's F, I and W, and the messages
    from then on          the schedule that is fastest in simulations with these times

Until then, the schedule is made for equal stages. Gradients of microbatches are added
up in the same order under any schedule, so the choice does not change any result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Callable

import numpy as np

from divisible.schedules.actions import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT
from divisible.schedules.catalogue import placed
from divisible.schedules.costs import Costs
from divisible.schedules.events import CATEGORIES
from divisible.schedules.groups import group_weights
from divisible.schedules.list_scheduling import list_schedule
from divisible.schedules.recomputation import recompute
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import simulate
from divisible.schedules.timeline import Timeline

#: The name of the schedule by which a user asks for this choice.
AUTO = "auto"
#: Number of minibatches that are not timed, and number of those that are.
N_WARM, N_TIMED = 1, 3


def first_schedule(stage_ranks: Sequence[int], n_microbatches: int) -> Schedule:
    """Returns the schedule that runs until stages have been timed, for equal stages.

    The backwards are split, so that I and W are timed separately.

    Args:
        stage_ranks: For each stage the rank that holds it.
        n_microbatches: Number of microbatches.
    """
    equal = Costs(forward=1.0, backward_input=1.0, backward_weight=1.0)
    return _list_schedule(equal, stage_ranks, n_microbatches)


class ScheduleTrial:
    """The minibatches by which a schedule is chosen.

    Args:
        stage_ranks: For each stage the rank that holds it.
        n_microbatches: Number of microbatches.
        when: The microbatches that are recomputed, one of
            `divisible.schedules.recomputation.RECOMPUTATIONS`.
        weight_groups: Number of microbatches in a group of weight gradients.
    """

    def __init__(
        self,
        stage_ranks: Sequence[int],
        n_microbatches: int,
        when: str,
        weight_groups: int = 1,
    ) -> None:
        self._weight_groups = weight_groups
        self._stage_ranks = tuple(stage_ranks)
        self._n_microbatches = n_microbatches
        self._when = when
        self._n_seen = 0
        self._timelines: list[Timeline] = []

    def note(self, timeline: Callable[[], Timeline]) -> bool:
        """Records a minibatch, if it is to be timed.

        Args:
            timeline: Returns the timeline of the minibatch; called only if it is timed.

        Returns:
            Whether enough minibatches were timed to choose.
        """
        self._n_seen += 1
        if self._n_seen > N_WARM:
            self._timelines.append(timeline())
        return len(self._timelines) == N_TIMED

    def choose(self) -> Schedule:
        """Returns the schedule that is fastest by simulation.

        Candidates are the schedules of the catalogue that suit the placement of the
        stages, the one that has been running, and one made for the measured times. A
        rank may hold as many microbatches as the first rank does in 1F1B.
        """
        costs = measured_costs(self._timelines, len(self._stage_ranks))
        where = self._stage_ranks, self._n_microbatches
        # The first of several equally fast candidates is chosen. So a schedule of the
        # catalogue comes first, then the one that runs.
        candidates = [*placed(*where), first_schedule(*where)]
        candidates.append(_list_schedule(costs, *where))
        if self._when != "never":
            candidates.append(_list_schedule(_recomputing(costs), *where))
        # A group holds the W of all its microbatches.
        limit = _limit(*where) + self._weight_groups - 1
        best, least = None, np.inf
        for plain in candidates:
            schedule = group_weights(recompute(plain, self._when), self._weight_groups)
            timeline = simulate(schedule, costs)
            fits = np.all(timeline.peak_held <= limit)
            if fits and timeline.makespan < least * (1 - 1e-9):
                best, least = schedule, timeline.makespan
        return best


def measured_costs(timelines: Iterable[Timeline], n_stages: int) -> Costs:
    """Returns what stages and messages cost in measured timelines of one schedule.

    Args:
        timelines: The timelines of several minibatches.
        n_stages: Number of stages.

    Returns:
        Mean seconds of each stage. A backward that was not split counts as I. A
        message takes as long as idle ranks waited for one that had been sent: the
        median of each edge. Where ranks behind an edge were busy, it is taken to be as
        fast as the others.

    Example:
        >>> first = [(0, "0F0", 0, 2), (0, "0I0", 7, 9), (0, "0W0", 9, 10)]
        >>> second = [(1, "0F0<0", 0, 3, "wait"), (1, "1F0", 3, 4), (1, "1B0", 4, 6)]
        >>> costs = measured_costs([Timeline(first + second)], n_stages=2)
        >>> costs.backward_input, costs.backward_weight, costs.transfer
        ([2.0, 2.0], [1.0, 0.0], [1.0])
    """
    seconds = np.zeros((len(CATEGORIES), n_stages))
    counts = np.zeros_like(seconds)
    delays: list[list[float]] = [[] for _ in range(n_stages - 1)]
    for timeline in timelines:
        computes = timeline.category < len(KINDS)
        where = timeline.category[computes], timeline.stage[computes]
        np.add.at(seconds, where, (timeline.end - timeline.start)[computes])
        np.add.at(counts, where, timeline.count[computes])
        _add_delays(timeline, delays)
    means = seconds / np.maximum(counts, 1)
    known = [delay for edge in delays for delay in edge]
    usual = float(np.median(known)) if known else 0.0
    return Costs(
        means[FORWARD].tolist(),
        (means[INPUT] + means[BACKWARD]).tolist(),
        means[WEIGHT].tolist(),
        transfer=[float(np.median(edge)) if edge else usual for edge in delays],
    )


def _add_delays(timeline: Timeline, delays: Sequence[list[float]]) -> None:
    """Adds, for each edge, how long sent messages kept idle ranks waiting."""
    events = zip(
        timeline.category.tolist(),
        timeline.stage.tolist(),
        timeline.kind.tolist(),
        timeline.microbatch.tolist(),
        timeline.count.tolist(),
        timeline.label.tolist(),
        timeline.start.tolist(),
        timeline.end.tolist(),
    )
    ends, waits = {}, []
    for category, stage, kind, microbatch, count, label, start, end in events:
        if category < len(KINDS):
            for each in range(microbatch, microbatch + count):
                ends[stage, kind, each] = end
        # Messages with a label came over skip connections.
        elif category == CATEGORIES.index("wait") and label < 0:
            waits.append((stage, kind, microbatch, start, end))
    for stage, kind, microbatch, start, end in waits:
        sent = ends.get((stage, kind, microbatch), start)
        if sent > start:
            edge = stage if kind == FORWARD else stage - 1
            delays[edge].append(max(0.0, end - sent))


def _recomputing(costs: Costs) -> Costs:
    """Adds the time of the forward that runs again to each backward."""
    again = np.add(costs.forward, costs.backward_input).tolist()
    return replace(costs, backward_input=again)


def _list_schedule(
    costs: Costs, stage_ranks: Sequence[int], n_microbatches: int
) -> Schedule:
    limit = _limit(stage_ranks, n_microbatches)
    return list_schedule(costs, n_microbatches, limit, stage_ranks)


def _limit(stage_ranks: Sequence[int], n_microbatches: int) -> int:
    """Returns how many microbatches a rank may hold: as many as the first in 1F1B."""
    return min(n_microbatches, len(set(stage_ranks)))
