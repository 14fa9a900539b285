"""Generators of pipeline schedules."""

from __future__ import annotations

import numpy as np

from pipeline.actions import BACKWARD, FORWARD, ScheduleError
from pipeline.schedule import Schedule


def _positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ScheduleError(f"{name} must be at least 1, not {number}")


def gpipe(n_stages: int, n_microbatches: int) -> Schedule:
    """All microbatches forward, then all backward.

    The simplest schedule: the pipeline fills once, runs dry, fills once more
    backward. Every stage holds the activations of the whole minibatch.

    With ``d`` stages, ``m`` microbatches and times F and B of one stage on one
    microbatch: makespan ``(m + d - 1) (F + B)``, of which ``(d - 1) (F + B)`` is
    bubble; ``m`` microbatches in flight on every stage.

    Source: Huang et al., GPipe: Efficient Training of Giant Neural Networks using
    Pipeline Parallelism, NeurIPS 2019.

    Args:
        n_stages: Number of stages, one on each rank.
        n_microbatches: Number of microbatches; may be less than ``n_stages``.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If a number is less than 1.

    Example:
        >>> print(gpipe(n_stages=3, n_microbatches=4))
        gpipe: 4 microbatches, 3 stages on ranks 0 1 2
        step      0   1   2   3   4   5   6   7   8   9  10  11
        rank 0  0F0 0F1 0F2 0F3   .   .   .   . 0B0 0B1 0B2 0B3
        rank 1    . 1F0 1F1 1F2 1F3   .   . 1B0 1B1 1B2 1B3   .
        rank 2    .   . 2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3   .   .
    """
    _positive(n_stages=n_stages, n_microbatches=n_microbatches)
    d, m = n_stages, n_microbatches
    return Schedule.from_arrays(
        np.repeat(np.arange(d), 2 * m),
        np.tile(np.repeat([FORWARD, BACKWARD], m), d),
        np.tile(np.arange(m), 2 * d),
        np.arange(d + 1) * 2 * m,
        range(d),
        m,
        "gpipe",
    )


def one_f_one_b(n_stages: int, n_microbatches: int) -> Schedule:
    """One forward, one backward in turn, once the pipeline is full (1F1B).

    Each stage runs only as many microbatches ahead as the pipeline needs to fill and
    then alternates. It takes as long as `gpipe`, but what a stage holds no longer
    grows with the number of microbatches.

    With ``d`` stages, ``m`` microbatches and times F and B of one stage on one
    microbatch: makespan ``(m + d - 1) (F + B)``, of which ``(d - 1) (F + B)`` is
    bubble; ``min(m, d - i)`` microbatches in flight on stage ``i``.

    Source: Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN
    Training, SOSP 2019; with a flush after each minibatch as in Narayanan et al.,
    Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021.

    Args:
        n_stages: Number of stages, one on each rank.
        n_microbatches: Number of microbatches; may be less than ``n_stages``.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If a number is less than 1.

    Example:
        >>> print(one_f_one_b(n_stages=3, n_microbatches=4))
        1f1b: 4 microbatches, 3 stages on ranks 0 1 2
        step      0   1   2   3   4   5   6   7   8   9  10  11
        rank 0  0F0 0F1 0F2   .   . 0B0 0F3 0B1   . 0B2   . 0B3
        rank 1    . 1F0 1F1   . 1B0 1F2 1B1 1F3 1B2   . 1B3   .
        rank 2    .   . 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3   .   .
    """
    _positive(n_stages=n_stages, n_microbatches=n_microbatches)
    d, m = n_stages, n_microbatches
    kind = np.empty((d, 2 * m), np.int8)
    microbatch = np.empty((d, 2 * m), np.int32)
    for stage in range(d):
        ahead = min(m, d - 1 - stage)
        both = m - ahead
        kind[stage, :ahead] = FORWARD
        kind[stage, ahead : ahead + 2 * both : 2] = FORWARD
        kind[stage, ahead + 1 : ahead + 2 * both : 2] = BACKWARD
        kind[stage, ahead + 2 * both :] = BACKWARD
        backward = kind[stage] == BACKWARD
        microbatch[stage, ~backward] = np.arange(m)
        microbatch[stage, backward] = np.arange(m)
    return Schedule.from_arrays(
        np.repeat(np.arange(d), 2 * m),
        kind.ravel(),
        microbatch.ravel(),
        np.arange(d + 1) * 2 * m,
        range(d),
        m,
        "1f1b",
    )


_GENERATORS = {"gpipe": gpipe, "1f1b": one_f_one_b}


def create(name: str, n_stages: int, n_microbatches: int) -> Schedule:
    return _GENERATORS[name](n_stages, n_microbatches)
