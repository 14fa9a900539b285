"""Generators of schedules that repeat one building block, and hold little by that.

A *building block* gives every action on one microbatch a step. Here is one of three
ranks with two stages each, in the shape of a V::

    step     0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17
    rank 0  0F  .  .  .  .  .  . 5F 5I  . 5W  .  .  .  . 0I  . 0W
    rank 1   . 1F  .  .  .  . 4F  .  . 4I 4W  .  .  . 1I  .  . 1W
    rank 2   .  . 2F  .  . 3F  .  .  .  . 3I  . 3W 2I  . 2W  .  .

The schedule begins the block again every six steps, because a rank has six actions on
a microbatch. They must not meet those of other microbatches. So the six steps of a rank
differ modulo six. The time from F to W decides how many microbatches a rank holds: a
block in which a microbatch hurries through the ranks holds little.
"""

from __future__ import annotations

import numpy as np

from divisible.schedules.actions import INPUT, KINDS, WEIGHT
from divisible.schedules.dependencies import unit_steps
from divisible.schedules.generators import check_positive, collect
from divisible.schedules.schedule import Schedule

# The actions of a rank on a microbatch in the rows of a block: kinds, and whether the
# stage is the one near the first stage of the model.
_KINDS = np.array([*"FFIIWW"])
_IS_NEAR = np.array([True, False, False, True, False, True])
_PERIOD = len(_KINDS)


def v_half(n_ranks: int, n_microbatches: int) -> Schedule:
    """Two stages on each rank in the shape of a V, with half the memory of 1F1B.

    Rank ``r`` holds stages ``r`` and ``2 n_ranks - 1 - r``, as in `zero_bubble_v`. On
    its way to the last rank a microbatch waits for a step at each rank. On its way to
    the first rank it does not wait.

    With F = I = W of one stage and ``d`` ranks the makespan is at most
    ``2 m (F + I + W)`` plus the greater of ``(4 (d - 1) - m) F`` and
    ``13 (d - 1) F / 4``. That is less than 1F1B takes. Where F and I differ by no more
    than W / 2, ranks wait only while the pipeline fills and drains. Activations and
    pending W together on each rank: at most ``min(m, (d + 2) // 2)`` microbatches, of
    which never more than 1.5 have a pending W.

    Source: Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024,
    section 3 (V-Half). Here weight gradients after a rank's last forward run where the
    rank would wait.

    Args:
        n_ranks: Number of ranks; there are twice as many stages.
        n_microbatches: Number of microbatches; may be less than the stages.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If a number is less than 1.

    Example:
        >>> print(v_half(n_ranks=2, n_microbatches=3))
        v_half: 3 microbatches, 4 stages on ranks 0 1 1 0
        step      0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15  16  17  18  19
        rank 0  0F0 0F1   . 3F0 3I0 3W0 0F2   . 3F1 3I1 3W1 0I0 0W0 3F2 3I2 0I1 3W2 0I2 0W1 0W2
        rank 1    . 1F0 2F0 1F1   . 2I0 2W0 2F1 1F2 1I0 2I1 2W1 2F2 1I1 1W0 2I2 1I2 1W1 2W2 1W2
    """  # noqa: E501
    return _repeat("v_half", n_ranks, n_microbatches, 2, (1, 2, 4))


def v_min(n_ranks: int, n_microbatches: int) -> Schedule:
    """Two stages on each rank in the shape of a V, with a third of 1F1B's memory.

    Rank ``r`` holds stages ``r`` and ``2 n_ranks - 1 - r``, as in `zero_bubble_v`. A
    microbatch goes through all ranks without a wait, except where it turns. So with
    three ranks or more, each microbatch waits if F, I and W take unequally long.

    With F = I = W of one stage and ``d >= 2`` ranks the makespan is
    ``2 m (F + I + W) + (4 d - 5) F``, which is less than 1F1B takes. Activations and
    pending W together on each rank: at most ``min(m, (d + 4) // 3)`` microbatches, of
    which never more than one has a pending W.

    Source: Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024,
    section 3 (V-Min). Here weight gradients after a rank's last forward run where the
    rank would wait.

    Args:
        n_ranks: Number of ranks; there are twice as many stages.
        n_microbatches: Number of microbatches; may be less than the stages.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If a number is less than 1.

    Example:
        >>> print(v_min(n_ranks=2, n_microbatches=3))
        v_min: 3 microbatches, 4 stages on ranks 0 1 1 0
        step      0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15  16  17  18  19  20
        rank 0  0F0 0F1   . 3F0 3I0 3W0 0F2   . 3F1 3I1 0I0 3W1 0W0   . 3F2 3I2 0I1 3W2 0I2 0W1 0W2
        rank 1    . 1F0 2F0 1F1   . 2I0 2W0 2F1 1F2 1I0 2I1 2W1 1W0 2F2 1I1 1W1 2I2 1I2 2W2 1W2   .
    """  # noqa: E501
    return _repeat("v_min", n_ranks, n_microbatches, 1, (1, 2, 3))


def _repeat(
    name: str, n_ranks: int, n_microbatches: int, pace: int, turns: tuple[int, int, int]
) -> Schedule:
    """Repeats a building block for each microbatch.

    Args:
        name: Name of the schedule.
        n_ranks: Number of ranks.
        n_microbatches: Number of microbatches.
        pace: See `_block`.
        turns: See `_block`.
    """
    check_positive(n_ranks=n_ranks, n_microbatches=n_microbatches)
    d, m = n_ranks, n_microbatches
    block = _block(d, pace, turns)
    again = _PERIOD * np.arange(m)
    rows = []
    for rank in range(d):
        step = (block[:, rank, None] + again).ravel()
        stage = np.repeat(np.where(_IS_NEAR, rank, 2 * d - 1 - rank), m)
        kind = np.repeat(_KINDS, m)
        # From the last forward on a rank only frees memory. So W may run later there.
        is_late = (kind == "W") & (step > step[kind == "F"].max())
        order = np.flatnonzero(~is_late)[np.argsort(step[~is_late])]
        rows.append((stage[order], "".join(kind[order])))
    return _fill(collect(rows, m, name))


def _block(n_ranks: int, pace: int, turns: tuple[int, int, int]) -> np.ndarray:
    """Returns the steps at which the actions on one microbatch begin.

    The six steps of a rank must differ modulo six. They do for any number of ranks with
    pace 1 and turns (1, 2, 3), and with pace 2 and turns (1, 2, 4).

    Args:
        n_ranks: Number of ranks.
        pace: Steps from rank to rank on the way to the last rank, of F and of I. On the
            way to the first rank it is one step.
        turns: The steps modulo six in which rank 0 begins its second F, its first I and
            its second I. Its first F begins in step 0.

    Returns:
        Integers of shape ``(6, n_ranks)``, in the order of ``_KINDS``.
    """
    rank = np.arange(n_ranks)
    # Steps from rank 0 to the last rank and back again.
    way = (pace + 1) * (n_ranks - 1) + 1
    second = _next(way, turns[0])
    third = _next(second + 1, turns[1])
    fourth = _next(third + way, turns[2])
    steps = [pace * rank, second - rank, third + pace * rank, fourth - rank]
    for backward in steps[2:]:
        # The first step after I in which the rank has nothing to do.
        later = backward + 1 + np.arange(_PERIOD)[:, None]
        is_free = np.all([(later - step) % _PERIOD for step in steps], axis=0)
        steps.append(later[is_free.argmax(axis=0), rank])
    return np.array(steps)


def _next(step: int, turn: int) -> int:
    """Returns the first step from ``step`` on that is ``turn`` modulo six."""
    return step + (turn - step) % _PERIOD


def _fill(schedule: Schedule) -> Schedule:
    """Adds missing W in steps in which ranks wait, as early as they can run.

    Args:
        schedule: A schedule without the last W of each stage.
    """
    step, _ = unit_steps(schedule)
    n_weights = np.bincount(
        schedule.stage[schedule.kind == WEIGHT], minlength=schedule.n_stages
    )
    lacks_weight = schedule.kind == INPUT
    lacks_weight &= schedule.microbatch >= n_weights[schedule.stage]
    rows = []
    for begin, end in zip(schedule.offsets, schedule.offsets[1:]):
        stage, when = schedule.stage[begin:end], step[begin:end]
        inputs = np.flatnonzero(lacks_weight[begin:end])
        weights = _free_steps(when[inputs[0] :], when[inputs] + 1)
        order = np.argsort([*when, *weights])
        stage = np.concatenate([stage, stage[inputs]])[order]
        kind = np.array([*KINDS])[schedule.kind[begin:end]]
        kind = np.concatenate([kind, ["W"] * len(inputs)])
        rows.append((stage, "".join(kind[order])))
    return collect(rows, schedule.n_microbatches, schedule.name)


def _free_steps(taken: np.ndarray, wanted: np.ndarray) -> list[int]:
    """Returns for each wanted step the first free one from there on, each once."""
    busy, found = {*taken.tolist()}, []
    for step in wanted.tolist():
        while step in busy:
            step += 1
        busy.add(step)
        found.append(step)
    return found
