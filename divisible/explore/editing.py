"""An action that is moved in its rank's order."""

from __future__ import annotations

import numpy as np

from divisible.schedules.schedule import Schedule

#: Word at the end of the name of an edited schedule.
EDITED = "edited"


def moved(schedule: Schedule, rank: int, source: int, target: int) -> Schedule:
    """Moves an action to another position among those of its rank, and proves the rest.

    Args:
        schedule: A valid schedule.
        rank: The rank.
        source: The position of the action in the rank's order, from 0.
        target: Its new position there.

    Returns:
        The schedule with the new order.

    Raises:
        ScheduleError: If the schedule cannot run in the new order. The message names
            the fault and shows the grid.
        ValueError: If there is no such rank or position.

    Example:
        >>> from divisible.schedules import gpipe
        >>> print(moved(gpipe(1, 2), rank=0, source=2, target=1))
        gpipe edited: 2 microbatches, 1 stage on rank 0
        step      0   1   2   3
        rank 0  0F0 0B0 0F1 0B1
    """
    if not 0 <= rank < schedule.n_ranks:
        raise ValueError(f"there is no rank {rank}: there are {schedule.n_ranks}")
    begin, end = schedule.offsets[rank : rank + 2].tolist()
    for position in (source, target):
        if not 0 <= position < end - begin:
            raise ValueError(
                f"rank {rank} has no position {position}: it has {end - begin} actions"
            )
    order = np.arange(len(schedule))
    own = np.delete(order[begin:end], source)
    order[begin:end] = np.insert(own, target, begin + source)
    name = schedule.name
    edited = Schedule.from_arrays(
        schedule.stage[order],
        schedule.kind[order],
        schedule.microbatch[order],
        schedule.offsets,
        schedule.stage_ranks,
        schedule.n_microbatches,
        name if name.endswith(EDITED) else f"{name} {EDITED}",
        schedule.count[order],
        schedule.weight_versions,
    )
    edited.validate()
    return edited
