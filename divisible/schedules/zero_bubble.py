"""Generators of schedules that split the backward, and fill the bubble with W."""

from __future__ import annotations

import numpy as np

from divisible.schedules.generators import (
    check_positive,
    chunks_in_turn,
    collect,
)
from divisible.schedules.schedule import Schedule


def zero_bubble_h1(n_stages: int, n_microbatches: int) -> Schedule:
    """1F1B with weight gradients in the gaps in which ranks would idle (ZB-H1).

    Backward is split: the stage before waits only for input gradients (I), so weight
    gradients (W) can fill the gaps. Stage ``i`` delays ``i`` of them, which is just
    enough to fill the end of the schedule. No stage holds more than the first one does
    in 1F1B.

    With ``m >= d`` and F = I = W the makespan is
    ``m (F + I + W) + (d - 1) (F + I - W)``, with a third of 1F1B's bubble. Stage ``i``
    has ``min(m, d - i)`` microbatches in flight and ``min(m, i + 1)`` pending W,
    together never more than ``min(m, d)``. With ``m < d`` the makespan is
    ``(m + d - 1) (F + I) + W``.

    Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.1.

    Args:
        n_stages: Number of stages, one on each rank.
        n_microbatches: Number of microbatches; may be less than ``n_stages``.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If a number is less than 1.

    Example:
        >>> print(zero_bubble_h1(n_stages=3, n_microbatches=4))
        zb_h1: 4 microbatches, 3 stages on ranks 0 1 2
        step      0   1   2   3   4   5   6   7   8   9  10  11  12  13
        rank 0  0F0 0F1 0F2   .   . 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
        rank 1    . 1F0 1F1   . 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3
        rank 2    .   . 2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3
    """
    return _zero_bubble(n_stages, n_microbatches, 1, "zb_h1")


def zero_bubble_h2(n_stages: int, n_microbatches: int) -> Schedule:
    """ZB-H1 that runs twice as far ahead, where there is memory for it (ZB-H2).

    Stage ``i`` begins with ``2 (d - i) - 1`` forwards, not ``d - i``, and delays
    ``2 i`` weight gradients, not ``i``. So input gradients may take twice as long to
    come back before a stage has nothing else to do. Where F = I = W and messages take
    no time, ZB-H1 is as good. Where I takes longer than F or W, or messages take time,
    ranks wait for input gradients in every turn of ZB-H1, and not in ZB-H2.

    With ``m >= 2 d - 1`` and ``I <= 2 F`` the makespan is
    ``m (F + I + W) + (d - 1) (F + max(0, I - 2 W))``; the last stage waits only until
    the pipeline is full. Stage ``i`` has ``min(m, 2 (d - i) - 1)`` microbatches in
    flight and ``min(m, 2 i + 1)`` pending W, together never more than
    ``min(m, 2 d - 1)``. With few microbatches ZB-H1 may be faster.

    Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.2. There
    the next minibatch begins before the last ranks have ended this one. Here, as in all
    schedules of this package, every rank ends a minibatch before the next one begins.

    Args:
        n_stages: Number of stages, one on each rank.
        n_microbatches: Number of microbatches; may be less than ``n_stages``.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If a number is less than 1.

    Example:
        >>> print(zero_bubble_h2(n_stages=3, n_microbatches=5))
        zb_h2: 5 microbatches, 3 stages on ranks 0 1 2
        step      0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15  16
        rank 0  0F0 0F1 0F2 0F3 0F4 0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4   .   .
        rank 1    . 1F0 1F1 1F2 1I0 1F3 1I1 1F4 1I2 1W0 1I3 1W1 1I4 1W2 1W3 1W4   .
        rank 2    .   . 2F0 2I0 2F1 2I1 2F2 2I2 2F3 2I3 2F4 2I4 2W0 2W1 2W2 2W3 2W4
    """
    return _zero_bubble(n_stages, n_microbatches, 2, "zb_h2")


def zero_bubble_v(n_ranks: int, n_microbatches: int) -> Schedule:
    """Two stages on each rank in the shape of a V, without a bubble once full (ZB-V).

    Rank ``r`` holds stages ``r`` and ``2 n_ranks - 1 - r``, so that a microbatch comes
    back to rank 0, and its backward starts where its forward ended. Input gradients
    (I) leave early in both directions. Weight gradients (W) fill the gaps that remain.

    With F = I = W of one stage, ``d`` ranks and ``m >= 3 d / 2``: makespan
    ``2 m (F + I + W) + (d - 1) F``; ranks wait only while the pipeline fills and
    drains. In general it is the greater of that and ``4 (m + d) - 2`` (in units of
    F). Activations and pending W together on each rank: at most ``min(m, d)``
    microbatches, as much memory as 1F1B needs on its first stage.

    Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024 (ZB-V), in the
    phases of PyTorch's ``ScheduleZBVZeroBubble``.

    Args:
        n_ranks: Number of ranks; there are twice as many stages.
        n_microbatches: Number of microbatches; may be less than the stages.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If a number is less than 1.

    Example:
        >>> print(zero_bubble_v(n_ranks=2, n_microbatches=3))
        zb_v: 3 microbatches, 4 stages on ranks 0 1 1 0
        step      0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15  16  17  18
        rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2   .
        rank 1    . 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
    """  # noqa: E501
    check_positive(n_ranks=n_ranks, n_microbatches=n_microbatches)
    p = n_ranks
    # With too few microbatches to fill the pipeline, the order is that of just enough
    # microbatches, without the surplus.
    m = max(2 * p - 1, n_microbatches)
    rows = []
    for rank in range(p):
        near, far = rank, 2 * p - 1 - rank
        parts = [
            # Fill: ahead on the way to the tip of the V, then in turn on both ways.
            (near, "F" * (2 * (p - rank) - 1)),
            *[(far, "F"), (near, "F")] * rank,
            (far, "FIW" * (p - rank)),
            # Full: one forward and one backward in turn, on each way.
            *[(near, "FIW"), (far, "FIW")] * (m - p),
            # Drain: input gradients first where other ranks still wait for them.
            *[(near, "I"), (far, "I")] * rank,
            (near, "IW" * (p - rank)),
            (far, "W" * rank),
            (near, "W" * rank),
        ]
        stages, kinds = zip(*parts)
        rows.append((np.repeat(stages, [*map(len, kinds)]), "".join(kinds)))
    return collect(rows, n_microbatches, "zb_v")


def interleaved_zb(n_ranks: int, n_chunks: int, n_microbatches: int) -> Schedule:
    """The interleaved schedule with weight gradients in its gaps.

    Stages lie as in `interleaved`, and each rank takes ``n_ranks`` microbatches through
    one chunk before it turns to the next. As in `zero_bubble_h1` the stage before waits
    only for input gradients (I). So a rank runs half as many forwards ahead for each
    rank behind it as in `interleaved`, and rank ``i`` delays ``i`` weight gradients.

    The following holds if ``m`` is a multiple of ``d`` ranks, with ``v`` chunks and
    F = I = W of one stage. The makespan is
    ``v m (F + I + W) + (d - 1) (F + I - W)``, with a third of the bubble of
    `interleaved`. Activations and pending W together on each rank: at most
    ``min(m, d)`` microbatches, which holds for any ``m``.

    For any other ``m`` the schedule is the one for the next multiple of ``d``, without
    the surplus microbatches, and with a larger bubble.

    Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.1, on the
    interleaved stages of Narayanan et al., SC 2021; as PyTorch's
    ``ScheduleInterleavedZeroBubble`` joins them.

    Args:
        n_ranks: Number of ranks.
        n_chunks: Number of stages on each rank.
        n_microbatches: Number of microbatches, any.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If a number is less than 1.

    Example:
        >>> print(interleaved_zb(n_ranks=2, n_chunks=2, n_microbatches=2))
        interleaved_zb: 2 microbatches, 4 stages on ranks 0 1 0 1
        step      0   1   2   3   4   5   6   7   8   9  10  11  12
        rank 0  0F0 0F1 2F0 2F1   . 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1
        rank 1    . 1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1
    """
    check_positive(n_ranks=n_ranks, n_chunks=n_chunks, n_microbatches=n_microbatches)
    p, v = n_ranks, n_chunks
    chunk = chunks_in_turn(p, v, n_microbatches)
    rows = []
    for rank in range(p):
        kinds = _kinds(len(chunk), (v - 1) * p + p - 1 - rank, rank)
        kind = np.array([*kinds])
        stage = np.empty(len(kinds), int)
        stage[kind == "F"] = chunk * p + rank
        for backward in "IW":
            stage[kind == backward] = (v - 1 - chunk) * p + rank
        rows.append((stage, kinds))
    return collect(rows, n_microbatches, "interleaved_zb")


def _zero_bubble(n_stages: int, n_microbatches: int, depth: int, name: str) -> Schedule:
    """Runs ahead, and delays W, by ``depth`` microbatches for each stage on the way.

    Forwards run ahead for the later stages, from which their input gradients come back.
    Delayed W fill the end, when the stages before have no more forwards to send.
    """
    check_positive(n_stages=n_stages, n_microbatches=n_microbatches)
    d, m = n_stages, n_microbatches
    rows = []
    for stage in range(d):
        ahead, kept = depth * (d - 1 - stage), depth * stage
        rows.append((stage, _kinds(m, ahead, kept)))
    return collect(rows, m, name)


def _kinds(n: int, ahead: int, kept: int) -> str:
    """Returns the kinds of a rank's actions.

    Args:
        n: Number of forwards.
        ahead: Number of forwards before the first forward and I in turn.
        kept: Number of W that wait for the end.
    """
    ahead, kept = min(n, ahead), min(n, kept)
    turns = n - ahead
    # The first ``kept`` I have no W behind them.
    kinds = "F" * ahead + "FI" * min(kept, turns) + "FIW" * (turns - kept)
    kinds += "I" * (kept - turns) + "IW" * min(ahead, n - kept)
    return kinds + "W" * kept
