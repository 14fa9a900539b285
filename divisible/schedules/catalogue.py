"""Schedules by name."""

from __future__ import annotations

from divisible.schedules.actions import ScheduleError
from divisible.schedules.generators import (
    _positive,
    gpipe,
    interleaved,
    looped_bfs,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from divisible.schedules.schedule import Schedule

#: How many stages a rank usually has, by the names that `create` knows.
STAGES_PER_RANK = {
    "gpipe": 1,
    "1f1b": 1,
    "interleaved": 2,
    "looped_bfs": 2,
    "zb_h1": 1,
    "zb_h2": 1,
    "zb_v": 2,
}
#: The names that `create` knows.
NAMES = tuple(STAGES_PER_RANK)


def create(
    name: str, n_stages: int, n_microbatches: int, n_ranks: int | None = None
) -> Schedule:
    """Makes a schedule by its name.

    Args:
        name: One of `NAMES`.
        n_stages: Number of stages on all ranks together.
        n_microbatches: Number of microbatches.
        n_ranks: Number of ranks. Left out, half of ``n_stages`` for ``'zb_v'`` and
            ``n_stages`` for the others.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If the name is unknown, or the stages cannot be spread over the
            ranks in the way that the schedule needs.

    Example:
        >>> create("zb_v", n_stages=4, n_microbatches=2).stage_ranks
        (0, 1, 1, 0)
    """
    if name not in NAMES:
        raise ScheduleError(
            f"there is no schedule {name!r}; choose one of {', '.join(NAMES)}"
        )
    _positive(n_stages=n_stages, n_microbatches=n_microbatches)
    if n_ranks is None:
        n_ranks = max(1, n_stages // 2) if name == "zb_v" else n_stages
    _positive(n_ranks=n_ranks)
    if name in ("interleaved", "looped_bfs"):
        if n_stages % n_ranks:
            raise ScheduleError(
                f"{name} needs the same number of stages on each rank, but {n_stages} "
                f"stages do not divide among {n_ranks} ranks; cut the model into a "
                f"multiple of {n_ranks} stages"
            )
        chunks = n_stages // n_ranks
        make = interleaved if name == "interleaved" else looped_bfs
        return make(n_ranks, chunks, n_microbatches)
    per_rank = STAGES_PER_RANK[name]
    if n_stages != per_rank * n_ranks:
        raise ScheduleError(
            f"{name} needs {per_rank} stage{'s' * (per_rank > 1)} on each rank, that "
            f"is {per_rank * n_ranks} on {n_ranks} ranks, not {n_stages}"
        )
    if name == "zb_v":
        return zero_bubble_v(n_ranks, n_microbatches)
    make = {
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "zb_h1": zero_bubble_h1,
        "zb_h2": zero_bubble_h2,
    }[name]
    return make(n_stages, n_microbatches)
