"""Recomputation: trading a second forward for the memory of activations.

A recomputed microbatch holds only its stage's input between its forward and its
backward. Just before the backward the forward runs again (R) and builds the graph that
the backward needs. R waits for no other rank. So it costs nothing on a rank that would
only wait for a gradient::

    step      0   1   2   3   4   5   6   7   8
    rank 0  0F0 0F1 0R0 0B0 0F2 0R1 0B1 0R2 0B2
    rank 1    . 1F0 1B0 1F1 1B1 1F2 1B2   .   .

Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016; for pipelines
Huang et al., GPipe, NeurIPS 2019, section 2.3.
"""

from __future__ import annotations

import numpy as np

from divisible.schedules.actions import BACKWARD, INPUT, RECOMPUTE
from divisible.schedules.dependencies import NONE, locate
from divisible.schedules.schedule import Schedule

#: The microbatches whose forward runs again before their backward. Only the stage's
#: input is held in between.
RECOMPUTATIONS = ("never", "except_last", "always")


def recompute(schedule: Schedule, when: str = "always") -> Schedule:
    """Puts an R before the backward of each microbatch that is to be recomputed.

    The backward may follow the forward at once, as on the last stage of 1F1B. Then
    there is no memory to free in between, and the forward is not run again.

    Args:
        schedule: Any schedule.
        when: ``'never'``, ``'always'``, or ``'except_last'`` for all microbatches
            except the last one. The last one then holds its activations, which saves a
            second forward.

    Returns:
        The schedule with the R; the same one for ``'never'`` or without backward.

    Raises:
        ValueError: If ``when`` is another value.

    Example:
        >>> from divisible.schedules import one_f_one_b
        >>> print(recompute(one_f_one_b(n_stages=2, n_microbatches=3)))
        1f1b: 3 microbatches, 2 stages on ranks 0 1
        step      0   1   2   3   4   5   6   7   8
        rank 0  0F0 0F1 0R0 0B0 0F2 0R1 0B1 0R2 0B2
        rank 1    . 1F0 1B0 1F1 1B1 1F2 1B2   .   .
    """
    check_recomputation("when", when)
    if when == "never":
        return schedule
    kind, stage, microbatch = schedule.kind, schedule.stage, schedule.microbatch
    table = locate(schedule)
    backward = np.flatnonzero((kind == BACKWARD) | (kind == INPUT))
    forward, again = (
        table[row, stage[backward], microbatch[backward]] for row in (0, 3)
    )
    chosen = (forward != backward - 1) & (again == NONE)
    if when == "except_last":
        last = microbatch[backward] + schedule.count[backward] - 1
        chosen &= last != schedule.n_microbatches - 1
    before = backward[chosen]
    return Schedule.from_arrays(
        np.insert(stage, before, stage[before]),
        np.insert(kind, before, RECOMPUTE),
        np.insert(microbatch, before, microbatch[before]),
        schedule.offsets + np.searchsorted(before, schedule.offsets),
        schedule.stage_ranks,
        schedule.n_microbatches,
        schedule.name,
        np.insert(schedule.count, before, schedule.count[before]),
        schedule.weight_versions,
    )


def recomputed_share(schedule: Schedule) -> np.ndarray:
    """Returns for each stage the share of microbatches whose forward runs twice.

    Args:
        schedule: Any schedule.

    Returns:
        Numbers from 0 to 1, of shape (n_stages,).

    Example:
        >>> from divisible.schedules import one_f_one_b
        >>> recomputed_share(recompute(one_f_one_b(2, 4), "except_last"))
        array([0.75, 0.  ])
    """
    again = schedule.kind == RECOMPUTE
    stage, count = schedule.stage[again], schedule.count[again]
    n_recomputed = np.bincount(stage, count, minlength=schedule.n_stages)
    return n_recomputed / schedule.n_microbatches


def check_recomputation(name: str, value: str) -> None:
    """Checks that a value is one of `RECOMPUTATIONS`.

    Args:
        name: The name of the argument, for the message.
        value: The argument.

    Raises:
        ValueError: If it is another value; the message has the choices.
    """
    if value not in RECOMPUTATIONS:
        raise ValueError(
            f"{name} must be one of {', '.join(RECOMPUTATIONS)}, not {value!r}"
        )
