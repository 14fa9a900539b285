"""Weight gradients of several microbatches as one product.

The weight gradient of a microbatch with few samples is a product with few rows. It
reads its operands in no time, and then reads and writes the whole gradient of the
weight. A group of microbatches does that once::

    each microbatch    0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3
    groups of two      0I0 0I1 0W0-1   0I2 0I3 0W2-3
    one group          0I0 0I1 0I2 0I3 0W0-3

The price is memory: the inputs and output gradients of a microbatch are held from its I
to the W of its group. A whole backward (B) becomes an I, and a W at the end of its
group. Input gradients leave as early as before, so no other rank waits longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from divisible.number_lists import amount, numbers
from divisible.schedules.actions import BACKWARD, INPUT, WEIGHT, ScheduleError
from divisible.schedules.dependencies import locate
from divisible.schedules.schedule import Schedule
from divisible.schedules.weight_versions import check_one_version


def group_weights(schedule: Schedule, size: int | Sequence[int]) -> Schedule:
    """Joins the weight gradients of consecutive microbatches.

    A group begins at each microbatch whose position is a multiple of ``size``. It runs
    where the last of its W was, or after the last of its B. A group of one B stays a B.
    Microbatches that a stage takes as one are not cut, and belong to the group of the
    first one.

    Args:
        schedule: A valid schedule.
        size: Number of microbatches in a group, at least 1; one number for all stages
            or one for each. The last group may be smaller.

    Returns:
        The schedule with these groups; the same one if all sizes are 1 and it has no
        groups of W.

    Raises:
        ScheduleError: If a size is less than 1, the sizes do not fit the stages, or
            there are groups and two weight versions.

    Example:
        >>> from divisible.schedules import one_f_one_b
        >>> print(group_weights(one_f_one_b(n_stages=2, n_microbatches=4), size=2))
        1f1b: 4 microbatches, 2 stages on ranks 0 1
        step        0     1     2     3     4     5     6     7     8     9    10    11
        rank 0    0F0   0F1     .   0I0   0F2   0I1 0W0-1   0F3   0I2     .   0I3 0W2-3
        rank 1      .   1F0   1I0   1F1   1I1 1W0-1   1F2   1I2   1F3   1I3 1W2-3     .
    """
    sizes = group_sizes(schedule, size)
    kind, stage, first = schedule.kind, schedule.stage, schedule.microbatch
    backward = (kind == BACKWARD) | (kind == INPUT)
    if not backward.any() or (sizes.max() == 1 and not _has_groups(schedule)):
        return schedule
    check_one_version(schedule, "weight_groups")
    # Each backward belongs to the group of its first microbatch. The weight gradients
    # of a group run at the place of the last action with a part of them.
    number = stage.astype(np.int64) * schedule.n_microbatches + first // sizes[stage]
    found = np.flatnonzero(backward)
    groups, of_backward = np.unique(number[found], return_inverse=True)
    count = np.bincount(of_backward, schedule.count[found]).astype(np.int64)
    begin = np.full(groups.size, schedule.n_microbatches)
    np.minimum.at(begin, of_backward, first[found])
    is_split = np.bincount(of_backward, kind[found] == INPUT) > 0
    is_split |= np.bincount(of_backward) > 1
    action, microbatch = schedule.members
    of_member = number[locate(schedule)[1, stage[action], microbatch]]
    has_weights = (kind[action] == BACKWARD) | (kind[action] == WEIGHT)
    place = np.zeros(groups.size, np.int64)
    of_weights = np.searchsorted(groups, of_member[has_weights])
    np.maximum.at(place, of_weights, action[has_weights])

    new_kind = kind.copy()
    new_kind[found[is_split[of_backward]]] = INPUT
    kept = kind != WEIGHT
    after = place[is_split] + 1
    position = np.concatenate([np.flatnonzero(kept), after - 0.5])
    order = np.argsort(position, kind="stable")
    columns = (
        np.concatenate([old[kept], new])[order]
        for old, new in (
            (stage, stage[place[is_split]]),
            (new_kind, np.full(after.size, WEIGHT)),
            (first, begin[is_split]),
            (schedule.count, count[is_split]),
        )
    )
    new_stage, new_kind, new_first, new_count = columns
    offsets = np.searchsorted(position[order], schedule.offsets - 0.25)
    return Schedule.from_arrays(
        new_stage,
        new_kind,
        new_first,
        offsets,
        schedule.stage_ranks,
        schedule.n_microbatches,
        schedule.name,
        new_count,
    )


def weight_group_sizes(schedule: Schedule) -> tuple[int, ...]:
    """Returns for each stage the largest number of microbatches in a group of W.

    Args:
        schedule: Any schedule. A stage without W has groups of 1, as B computes them.

    Example:
        >>> from divisible.schedules import gpipe
        >>> weight_group_sizes(group_weights(gpipe(2, 5), size=[2, 1]))
        (2, 1)
    """
    sizes = np.ones(schedule.n_stages, np.int64)
    weights = schedule.kind == WEIGHT
    np.maximum.at(sizes, schedule.stage[weights], schedule.count[weights])
    return tuple(sizes.tolist())


def _has_groups(schedule: Schedule) -> bool:
    return max(weight_group_sizes(schedule), default=1) > 1


def group_sizes(schedule: Schedule, size: int | Sequence[int]) -> np.ndarray:
    """Returns the number of microbatches in the groups of each stage.

    Args:
        schedule: Any schedule.
        size: One number for all stages, or one for each.

    Raises:
        ScheduleError: If a size is less than 1, or the sizes do not fit the stages.
    """
    given = numbers("size", size)
    if given.ndim and given.shape != (schedule.n_stages,):
        raise ScheduleError(
            f"size has {amount(given)}, but there are {schedule.n_stages} stages: give"
            f" one number for all or one for each"
        )
    if (given < 1).any() or (given != given.round()).any():
        raise ScheduleError(
            f"groups of {given.tolist()} microbatches: give integers of at least 1"
        )
    # Larger groups than the minibatch are as large as it is.
    given = np.minimum(given, schedule.n_microbatches).astype(np.int64)
    return np.broadcast_to(given, schedule.n_stages)
