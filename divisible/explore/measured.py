"""A measured timeline: the question that it answers, and its lost time."""

from __future__ import annotations

from typing import Any

import numpy as np

from divisible.explore.question import Question
from divisible.schedules.actions import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT
from divisible.schedules.comparison import CAUSES
from divisible.schedules.schedule import Schedule
from divisible.schedules.timeline import Timeline


def schedule_of(timeline: Timeline) -> Schedule:
    """Returns the schedule that ran: the computations of each rank, in order.

    Args:
        timeline: A timeline of one minibatch.

    Raises:
        ScheduleError: If it has no computations, or they are not a whole minibatch.

    Example:
        >>> from divisible import simulate
        >>> from divisible.schedules import Costs, zero_bubble_v
        >>> schedule = zero_bubble_v(2, 4)
        >>> schedule_of(simulate(schedule, Costs(1, 1, 1))) == schedule
        True
    """
    compute = timeline.category < len(KINDS)
    schedule = Schedule.from_arrays(
        timeline.stage[compute],
        timeline.kind[compute],
        timeline.microbatch[compute],
        np.concatenate([[0], np.cumsum(compute)])[timeline.offsets],
        name=timeline.name.split(":")[0],
        count=timeline.count[compute],
    )
    schedule.validate()
    return schedule


def question_of(timeline: Timeline) -> Question:
    """Returns the question of a measured step: its schedule, and its mean times.

    The time of a whole backward (B) is divided equally between I and W.

    Args:
        timeline: A timeline of one minibatch.

    Raises:
        ScheduleError: See :func:`schedule_of`.

    Example:
        >>> timeline = Timeline([(0, "0F0", 0, 1), (0, "0B0", 1, 4)])
        >>> question = question_of(timeline)
        >>> question.forward, question.backward_input
        ((1.0,), (1.5,))
    """
    schedule = schedule_of(timeline)
    means = np.zeros((len(KINDS), schedule.n_stages))
    for kind in range(len(KINDS)):
        chosen = (timeline.category == kind) & (timeline.stage >= 0)
        stage = timeline.stage[chosen]
        seconds = (timeline.end - timeline.start)[chosen]
        total = np.bincount(stage, seconds, schedule.n_stages)
        number = np.bincount(stage, timeline.count[chosen], schedule.n_stages)
        means[kind] = total / np.maximum(number, 1)
    half = means[BACKWARD] / 2
    return Question(
        text=str(schedule),
        ranks=schedule.n_ranks,
        microbatches=schedule.n_microbatches,
        forward=tuple(means[FORWARD].tolist()),
        backward_input=tuple((means[INPUT] + half).tolist()),
        backward_weight=tuple((means[WEIGHT] + half).tolist()),
    )


def lost_time(measured: Timeline, predicted: Timeline) -> dict[str, Any]:
    """Returns the time that a measured step lost against a prediction, for the page.

    Args:
        measured: The measured step.
        predicted: The simulated step.

    Returns:
        ``text`` with the mean of the ranks, ``causes`` and, for each rank, ``lost``
        seconds by cause. Only ``text``, if the two have not the same work.
    """
    try:
        comparison = measured.compare(predicted)
    except ValueError as error:
        return {"text": str(error)}
    return {
        "text": f"measured against predicted: {comparison}",
        "causes": list(CAUSES),
        "lost": comparison.lost.tolist(),
    }
