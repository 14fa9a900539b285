"""Several minibatches one after the other, without a wait of all ranks between them.

Each rank runs its list again and again. A stage updates its parameters (U) after its
last action of a minibatch. Its rank goes on with the next one, whatever others do::

    rank 0  0F0 0F1   .   . 0B0   . 0B1   U 0F2 0F3   . ...
    rank 1    . 1F0 1B0   . 1F1 1B1   U   .   . 1F2 1B2 ...

The microbatches of the second minibatch go on with the next numbers. With two weight
versions the last backwards of a minibatch run in the next one, and the update by their
gradient after it (`divisible.schedules.weight_versions`).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from divisible.schedules.actions import FORWARD
from divisible.schedules.costs import Costs
from divisible.schedules.dependencies import NONE
from divisible.schedules.events import OTHER
from divisible.schedules.schedule import Schedule
from divisible.schedules.weight_versions import n_carried, unrolled


class Updates(NamedTuple):
    """The updates of parameters that take time, each after the action of a stage.

    Attributes:
        action: The number of the last action of the stage in the minibatch.
        seconds: The seconds of the update.
    """

    action: np.ndarray
    seconds: np.ndarray


def repeated(schedule: Schedule, n_minibatches: int) -> Schedule:
    """Returns the schedule of several minibatches.

    Args:
        schedule: The schedule of a minibatch.
        n_minibatches: Number of minibatches.

    Raises:
        TypeError: If the number is no integer.
        ValueError: If it is less than 1.

    Example:
        >>> from divisible.schedules import one_f_one_b
        >>> print(repeated(one_f_one_b(n_stages=2, n_microbatches=2), 2))
        1f1b, 2 minibatches: 4 microbatches, 2 stages on ranks 0 1
        step      0   1   2   3   4   5   6   7   8   9  10  11
        rank 0  0F0 0F1   . 0B0   . 0B1 0F2 0F3   . 0B2   . 0B3
        rank 1    . 1F0 1B0 1F1 1B1   .   . 1F2 1B2 1F3 1B3   .
    """
    n = operator.index(n_minibatches)
    if n < 1:
        raise ValueError(f"n_minibatches must be at least 1, not {n}")
    if n == 1:
        return schedule
    return Schedule.from_arrays(*unrolled(schedule, n))


def updates(
    schedule: Schedule, costs: Costs, n_minibatches: int, single: Schedule
) -> Updates:
    """Returns the updates that take time; none in an evaluation.

    Args:
        schedule: The schedule of all minibatches.
        costs: Costs of the stages.
        n_minibatches: Number of minibatches.
        single: The schedule of one minibatch.
    """
    seconds = costs.update_seconds(schedule.n_stages)
    is_evaluation = schedule.kind.max(initial=FORWARD) == FORWARD
    if is_evaluation or not seconds.any():
        return Updates(np.zeros(0, np.int64), np.zeros(0))
    if single.weight_versions > 1 and n_minibatches > 1:
        return _late_updates(single, seconds, n_minibatches)
    last = np.zeros((schedule.n_stages, n_minibatches), np.int64)
    size = schedule.n_microbatches // n_minibatches
    number = np.arange(schedule.stage.size)
    np.maximum.at(last, (schedule.stage, schedule.microbatch // size), number)
    chosen = seconds > 0
    return Updates(last[chosen].ravel(), np.repeat(seconds[chosen], n_minibatches))


def _late_updates(single: Schedule, seconds: np.ndarray, n_minibatches: int) -> Updates:
    """Returns the updates where gradients come one step late, each after a turn.

    The last one follows the flush. Where nothing is carried, that is the moment of the
    one before, and they count as one.
    """
    begin, end = single.offsets[:-1], single.offsets[1:]
    until = n_minibatches * begin + np.arange(2, n_minibatches + 1)[:, None] * (
        end - begin
    )
    action = np.concatenate([until - n_carried(single), [n_minibatches * end]]) - 1
    each = action[:, list(single.stage_ranks)]
    action, which = np.unique(each, return_inverse=True)
    took = np.bincount(which.ravel(), np.broadcast_to(seconds, each.shape).ravel())
    return Updates(action[took > 0], took[took > 0])


def with_updates(
    schedule: Schedule,
    columns: Mapping[str, np.ndarray],
    update: Updates,
    begin: np.ndarray,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Adds updates to the columns of events.

    Args:
        schedule: The schedule.
        columns: The columns of the other events.
        update: The updates.
        begin: The start of each update.

    Returns:
        The columns of all events, and the labels of the updates.
    """
    if not begin.size:
        return dict(columns), []
    more = {
        "rank": schedule.action_ranks[update.action],
        "category": np.full(begin.size, OTHER),
        "count": np.ones(begin.size, np.int64),
        "start": begin,
        "end": begin + update.seconds,
    }
    none = np.full(begin.size, NONE)
    joined = {
        name: np.concatenate([column, more.get(name, none)])
        for name, column in columns.items()
    }
    n_before = joined["rank"].size - begin.size
    joined["label"] = np.concatenate(
        [np.full(n_before, NONE), schedule.stage[update.action]]
    )
    return joined, [f"update of stage {s}" for s in range(schedule.n_stages)]
