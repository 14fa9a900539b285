"""Two versions of the weights, so that minibatches follow each other without a flush.

A schedule lists the actions of one minibatch. With one weight version a rank runs its
whole list before the next minibatch, so the pipeline drains and fills. With two, the
end of its list is *carried* into the next minibatch. It begins behind the first
backward that follows the last forward, and runs one backward after each forward::

    minibatch 0              | minibatch 1                 | flush
    0F0 0F1 0F2 0B0 0F3 0B1  | 0F4 0B2 0F5 0B3 0F6 0B4 ... | 0B6 0B7

Weights of a minibatch are those from before the update with the gradient of the one
before, on all ranks. A rank still needs them for carried backwards when its optimizer
has updated them. So it holds both versions, and two gradients: the complete one of the
minibatch before, and the sum that grows. With ``w(t)`` the weights after ``t`` updates,
minibatch ``t`` has the gradient of ``w(t - 1)``::

    w(t + 1) = w(t) - learning rate * gradient(minibatch t, w(t - 1)),   w(-1) = w(0)

A rank's *turn* is what it runs in one minibatch, with what is carried into it.

**Proof.** Results of carried backwards go to carried backwards only. So an action waits
for actions of its own turn and of earlier ones, never of later ones. `validation`
proves that a first turn, a second one and the flush end. Each later turn is like the
second.

Source: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021,
section 3.1 (2BW).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from divisible.schedules.actions import BACKWARD, FORWARD, ScheduleError
from divisible.schedules.table import Table


def n_carried(schedule: Table) -> np.ndarray:
    """Returns for each rank how many actions are carried into the next minibatch.

    Args:
        schedule: A schedule of one minibatch.

    Returns:
        Number of actions at the end of each rank's list; 0 with one weight version.

    Example:
        >>> from divisible.schedules import pipedream_2bw
        >>> n_carried(pipedream_2bw(n_stages=3, n_microbatches=4)).tolist()
        [2, 1, 0]
    """
    carried = np.zeros(schedule.n_ranks, np.int64)
    if schedule.weight_versions == 1:
        return carried
    for rank, (begin, end) in enumerate(zip(schedule.offsets, schedule.offsets[1:])):
        kind = schedule.kind[begin:end]
        last = np.flatnonzero(kind == FORWARD)[-1:]
        behind = np.flatnonzero(kind == BACKWARD)
        behind = behind[behind > last] if last.size else behind[:0]
        carried[rank] = kind.size - 1 - behind[0] if behind.size else 0
    return carried


def n_weights(schedule: Table) -> np.ndarray:
    """Returns for each stage how many versions of its weights it holds, 1 or 2.

    A stage needs a second one where backwards are carried into the next minibatch.

    Args:
        schedule: A schedule of one minibatch.

    Example:
        >>> from divisible.schedules import pipedream_2bw
        >>> n_weights(pipedream_2bw(n_stages=3, n_microbatches=4)).tolist()
        [2, 2, 1]
    """
    return 1 + (n_carried(schedule) > 0)[list(schedule.stage_ranks)]


def n_copies(schedule: Table) -> np.ndarray:
    """Returns for each stage how many more arrays of its weights' size it holds.

    With two weight versions these are a second gradient, and the second version of the
    weights, if the stage needs it.

    Args:
        schedule: A schedule of one minibatch.

    Example:
        >>> from divisible.schedules import one_f_one_b, pipedream_2bw
        >>> n_copies(pipedream_2bw(3, 4)).tolist(), n_copies(one_f_one_b(3, 4)).tolist()
        ([2, 2, 1], [0, 0, 0])
    """
    return n_weights(schedule) * (schedule.weight_versions > 1)


def check_one_version(schedule: Table, feature: str) -> None:
    """Refuses a schedule with two weight versions.

    Args:
        schedule: Any schedule.
        feature: The name of what does not go together with two versions.

    Raises:
        ScheduleError: If the schedule has two.
    """
    if schedule.weight_versions > 1:
        raise ScheduleError(
            f"{feature} does not go together with schedule {schedule.name!r}, which has"
            f" two weight versions and whole backwards of single microbatches; leave"
            f" {feature} out, or take another schedule"
        )


def turns(schedule: Table, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what a rank runs in a first minibatch, in each later one, and to flush.

    Args:
        schedule: A schedule of one minibatch.
        rank: The rank.

    Returns:
        Numbers of actions among those of all ranks, in three lists. The carried actions
        of the second and third list are those of the minibatch before.

    Example:
        >>> from divisible.schedules import pipedream_2bw
        >>> schedule = pipedream_2bw(n_stages=2, n_microbatches=3)
        >>> for numbers in turns(schedule, rank=0):
        ...     print(*map(schedule.action, numbers))
        0F0 0F1 0B0 0F2 0B1
        0F0 0B2 0F1 0B0 0F2 0B1
        0B2
    """
    begin, end = schedule.offsets[rank : rank + 2]
    first = end - n_carried(schedule)[rank]
    numbers = np.arange(begin, end)
    head, tail = numbers[: first - begin], numbers[first - begin :]
    # A forward that is recomputed runs right before its backward.
    ends = schedule.kind[tail] == BACKWARD
    forwards = np.flatnonzero(schedule.kind[head] == FORWARD)
    behind = forwards[np.cumsum(ends) - ends] + 0.5 if tail.size else np.zeros(0)
    places = np.concatenate([np.arange(head.size), behind])
    return head, numbers[np.argsort(places, kind="stable")], tail


def in_turn(schedule: Table, n_minibatches: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the actions of several minibatches, in the order in which ranks run them.

    Args:
        schedule: A schedule of one minibatch.
        n_minibatches: Number of minibatches, at least 1.

    Returns:
        For all actions of all ranks, one rank after the other, the number of the action
        in the schedule, and the number of its minibatch.
    """
    carried = n_carried(schedule)
    actions, minibatches = [], []
    for rank, end in enumerate(schedule.offsets[1:]):
        first, later, last = turns(schedule, rank)
        is_carried = later >= end - carried[rank]
        of_later = np.arange(1, n_minibatches)[:, None] - is_carried
        actions += [first, np.tile(later, n_minibatches - 1), last]
        minibatches += [
            np.zeros_like(first),
            of_later.ravel(),
            np.full_like(last, n_minibatches - 1),
        ]
    return np.concatenate(actions), np.concatenate(minibatches)


def unrolled(schedule: Table, n_minibatches: int) -> tuple[Any, ...]:
    """Returns several minibatches as one, whose microbatches have numbers in a row.

    Args:
        schedule: A schedule of one minibatch.
        n_minibatches: Number of minibatches, at least 1.

    Returns:
        The arguments of a `divisible.schedules.table.Table`: the actions of all
        minibatches, and of the flush. It has one weight version, because nothing
        follows it.
    """
    action, minibatch = in_turn(schedule, n_minibatches)
    return (
        schedule.stage[action],
        schedule.kind[action],
        schedule.microbatch[action] + minibatch * schedule.n_microbatches,
        n_minibatches * schedule.offsets,
        schedule.stage_ranks,
        n_minibatches * schedule.n_microbatches,
        f"{schedule.name}, {n_minibatches} minibatches",
        schedule.count[action],
    )
