"""Where a measured step lost time against its prediction."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import numpy as np

from divisible.schedules.actions import KINDS
from divisible.schedules.event_table import EventTable
from divisible.schedules.events import OTHER, RECEIVE, SEND, UPDATE, WAIT
from divisible.schedules.plot import describe, plot_timelines, time_unit

#: Causes of lost time, the first ones first: where events of two causes overlap, the
#: time counts for the first cause.
CAUSES = ("computing", "updating", "other", "messages", "waiting", "between")


class StageTime(NamedTuple):
    """The computation time of one stage, for all microbatches together.

    Attributes:
        stage: Position of the stage, from 0.
        rank: The rank that runs it.
        measured: Measured seconds.
        predicted: Predicted seconds.
    """

    stage: int
    rank: int
    measured: float
    predicted: float


class Comparison:
    """The time that a measured step lost against its prediction, by cause.

    A step is as long on each rank, and each moment of it has one cause. So the entries
    of a row of `lost` add up to the difference between the two steps::

        measured   |computing|updating|other|messages|waiting|between|
        predicted  |computing|messages|waiting (the bubble)|

    The stages of the rank took ``computing`` seconds more. The updates of parameters,
    which a prediction does not have, took ``updating``. An exchange of gradients,
    and any event that is no computation or message, took ``other``. Messages took
    ``messages``: they are packed, copied and sent. The rank waited for other ranks for
    ``waiting`` seconds more than the predicted bubble. Between two actions, Python took
    ``between`` to find what is next. Time is negative where the measured step was
    faster.

    Args:
        measured: The timeline of a step.
        predicted: The timeline of the same schedule, simulated.

    Attributes:
        measured, predicted (EventTable): The arguments.
        lost (numpy.ndarray): Seconds, of shape ``(n_ranks, len(CAUSES))``.
        stages (list[StageTime]): The times of each stage, by stage and rank.

    Raises:
        ValueError: If the two timelines have not the same stages and microbatches on
            the same ranks. The message names the first microbatch that is missing.

    Example:
        >>> from divisible.schedules import Timeline
        >>> predicted = Timeline([(0, "0F0", 0, 2), (1, "1F0", 2, 4)])
        >>> measured = Timeline(
        ...     [(0, "0F0", 0, 3), (1, "0F0<0", 0, 3, "wait"), (1, "1F0", 3, 6)]
        ... )
        >>> comparison = measured.compare(predicted)
        >>> print(comparison)
        +2 s: computing +1, updating +0, other +0, messages +0, waiting +1, between +0
        >>> comparison.stages[1].measured / comparison.stages[1].predicted
        1.5
    """

    def __init__(self, measured: EventTable, predicted: EventTable) -> None:
        _check_same_work(measured, predicted)
        self.measured = measured
        self.predicted = predicted
        self.lost = _seconds_by_cause(measured) - _seconds_by_cause(predicted)
        took, expected = _stage_seconds(measured), _stage_seconds(predicted)
        self.stages = [
            StageTime(stage, rank, took[stage, rank], expected[stage, rank])
            for stage, rank in sorted(took)
        ]

    def __str__(self) -> str:
        """Returns the lost time by cause in one line, as means over the ranks."""
        scale, unit = time_unit(self.measured.makespan)
        lost = self.lost.mean(axis=0) * scale
        # Three digits of the largest number, and no more decimals for the others.
        # Adding zero removes the sign of a negative zero.
        largest = max(np.abs(lost).max(), abs(lost.sum()))
        places = 2 - math.floor(math.log10(largest)) if largest else 0
        total, *by_cause = (np.round([lost.sum(), *lost], places) + 0.0).tolist()
        causes = ", ".join(
            f"{cause} {value:+.3g}" for cause, value in zip(CAUSES, by_cause)
        )
        return f"{total:+.3g} {unit}: {causes}"

    def plot(self, path: str | os.PathLike) -> None:
        """Draws both timelines on one scale of time; needs matplotlib.

        Args:
            path: The file to write. Its ending gives the format (``.png``, ``.svg`` …).

        Raises:
            ImportError: If matplotlib is not installed.
        """
        measured, predicted = describe(self.measured), describe(self.predicted)
        titles = (
            f"measured: {measured}; lost {self}",
            f"predicted for {self.predicted.name}: {predicted}",
        )
        plot_timelines(dict(zip(titles, (self.measured, self.predicted))), path)


def _check_same_work(measured: EventTable, predicted: EventTable) -> None:
    if measured.n_ranks != predicted.n_ranks:
        raise ValueError(
            f"the measured timeline has {measured.n_ranks} ranks and the predicted one "
            f"{predicted.n_ranks}: predict the step that was measured"
        )
    ours, theirs = _work(measured), _work(predicted)
    for one, other, which in (
        (ours, theirs, "predicted"),
        (theirs, ours, "measured"),
    ):
        missing = sorted(one - other)
        if missing:
            rank, stage, microbatch = missing[0]
            raise ValueError(
                f"microbatch {microbatch} of stage {stage} on rank {rank} is not in "
                f"the {which} timeline: predict the step that was measured, with its "
                "plan, schedule and number of microbatches"
            )


def _work(timeline: EventTable) -> set[tuple[int, int, int]]:
    compute = timeline.category < len(KINDS)
    columns = timeline.rank, timeline.stage, timeline.microbatch, timeline.count
    return {
        (rank, stage, microbatch)
        for rank, stage, first, count in set(
            zip(*(column[compute].tolist() for column in columns))
        )
        for microbatch in range(first, first + count)
    }


def _stage_seconds(timeline: EventTable) -> dict[tuple[int, int], float]:
    seconds: dict[tuple[int, int], float] = {}
    compute = timeline.category < len(KINDS)
    columns = timeline.stage, timeline.rank, timeline.end - timeline.start
    for stage, rank, took in zip(*(column[compute].tolist() for column in columns)):
        seconds[stage, rank] = seconds.get((stage, rank), 0.0) + took
    return seconds


def _seconds_by_cause(timeline: EventTable) -> np.ndarray:
    """Returns how many seconds of each rank have each of `CAUSES`."""
    seconds = np.zeros((timeline.n_ranks, len(CAUSES)))
    if not len(timeline):
        return seconds
    begin, end = float(timeline.start.min()), float(timeline.end.max())
    category = timeline.category
    of_cause = {
        "computing": category < len(KINDS),
        "updating": category == UPDATE,
        "other": category == OTHER,
        "messages": (category == SEND) | (category == RECEIVE),
        "waiting": category == WAIT,
    }
    recorded = bool(of_cause["waiting"].any())
    between, waiting = CAUSES.index("between"), CAUSES.index("waiting")
    for rank in range(timeline.n_ranks):
        here = slice(timeline.offsets[rank], timeline.offsets[rank + 1])
        start, stop = timeline.start[here], timeline.end[here]
        # Nothing begins or ends within one of these pieces of time.
        edges = np.unique([begin, end, *start, *stop])
        length = np.diff(edges)
        taken = np.zeros(len(length), bool)
        for cause, chosen in of_cause.items():
            covered = _covers(edges, start[chosen[here]], stop[chosen[here]]) & ~taken
            seconds[rank, CAUSES.index(cause)] = length[covered].sum()
            taken |= covered
        # Before its first event and after its last one a rank has nothing to do. In a
        # timeline without waits, such as a prediction, a rank waits whenever it idles.
        first, last = start.min(initial=end), stop.max(initial=begin)
        within = (edges[:-1] >= first) & (edges[1:] <= last) & recorded
        seconds[rank, between] = length[within & ~taken].sum()
        seconds[rank, waiting] += length[~within & ~taken].sum()
    return seconds


def _covers(edges: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Returns for each piece between two edges whether some interval covers it."""
    steps = np.zeros(len(edges), np.int64)
    np.add.at(steps, np.searchsorted(edges, start), 1)
    np.add.at(steps, np.searchsorted(edges, stop), -1)
    return np.cumsum(steps)[:-1] > 0
