"""The generator of PipeDream-2BW: 1F1B without a flush between minibatches."""

from __future__ import annotations

from divisible.schedules.generators import one_f_one_b
from divisible.schedules.schedule import Schedule


def pipedream_2bw(n_stages: int, n_microbatches: int) -> Schedule:
    """1F1B without a flush, with two weight versions and gradients one step late.

    A rank runs the first forwards of the next minibatch between the last backwards of
    this one, so that no rank waits once the pipeline is full::

        >>> from divisible.schedules.minibatches import repeated
        >>> print(repeated(pipedream_2bw(n_stages=2, n_microbatches=2), 3))
        pipedream_2bw, 3 minibatches: 6 microbatches, 2 stages on ranks 0 1
        step      0   1   2   3   4   5   6   7   8   9  10  11  12  13
        rank 0  0F0 0F1   . 0B0 0F2 0B1 0F3 0B2 0F4 0B3 0F5 0B4   . 0B5
        rank 1    . 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3 1F4 1B4 1F5 1B5   .

    The training is another one than that of the other schedules: each gradient belongs
    to the weights from before the last update
    (`divisible.schedules.weight_versions`). So ``'auto'`` and `divisible.best_plan` do
    not choose this schedule by themselves.

    With ``d`` stages, ``m >= d`` microbatches, times F and B of one stage on one
    microbatch, and messages that take no time: ``k`` minibatches take
    ``(k m + d - 1) (F + B)``, so the bubble ``(d - 1) (F + B)`` comes once in a run. In
    flight on stage ``i``: ``min(m, d - i)`` microbatches, as in 1F1B. Each stage but
    the last holds its weights twice, and each stage its gradient twice.

    Source: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML
    2021, section 3.1 (2BW). There an update follows the last backward of its minibatch
    at once. Here it follows the rank's part of the next minibatch, by the same
    gradient, since a script calls it between two minibatches.

    Args:
        n_stages: Number of stages, one on each rank.
        n_microbatches: Number of microbatches. With fewer than ``n_stages``, ranks wait
            in each minibatch.

    Returns:
        The schedule of a minibatch. Its last backwards run in the next one.

    Raises:
        ScheduleError: If a number is less than 1.

    Example:
        >>> print(pipedream_2bw(n_stages=3, n_microbatches=4))
        pipedream_2bw: 4 microbatches, 3 stages on ranks 0 1 2, 2 weight versions
        step      0   1   2   3   4   5   6   7   8   9  10  11
        rank 0  0F0 0F1 0F2   .   . 0B0 0F3 0B1   . 0B2   . 0B3
        rank 1    . 1F0 1F1   . 1B0 1F2 1B1 1F3 1B2   . 1B3   .
        rank 2    .   . 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3   .   .
    """
    plain = one_f_one_b(n_stages, n_microbatches)
    return Schedule.from_arrays(
        plain.stage,
        plain.kind,
        plain.microbatch,
        plain.offsets,
        plain.stage_ranks,
        plain.n_microbatches,
        "pipedream_2bw",
        weight_versions=2,
    )
