"""Generators of pipeline schedules whose backward is whole, and formulas of all.

Other generators are in :mod:`divisible.schedules.zero_bubble`,
:mod:`divisible.schedules.building_blocks`, :mod:`divisible.schedules.dual_pipe` and
:mod:`divisible.schedules.pipedream`.

The formulas use ``d`` for the number of stages, or the number of ranks if a rank has
several stages. The number of stages on a rank (chunks) is ``v``, and the number of
microbatches is ``m``. F, I and W are the times of one stage on one microbatch, and
B = I + W.

================  ===================  ======================================
schedule          bubble               held on rank ``i`` at most
================  ===================  ======================================
`gpipe`           (d - 1) (F + B)      m
`one_f_one_b`     (d - 1) (F + B)      min(m, d - i)
`interleaved`     (d - 1) (F + B)      min(v m, (v - 1) d + 2 (d - i) - 1) / v
`looped_bfs`      (d - 1) (F + B)      m
`zero_bubble_h1`  (d - 1) (F + I - W)  min(m, d)
`zero_bubble_h2`  (d - 1) F            min(m, 2 d - 1)
`interleaved_zb`  (d - 1) (F + I - W)  min(m, d)
`zero_bubble_v`   (d - 1) F            min(m, d)
`v_half`          13 (d - 1) F / 4     min(m, (d + 2) // 2)
`v_min`           (4 d - 5) F          min(m, (d + 4) // 3)
`dualpipe_v`      (d - 1) F            min(m, d + 1 / 2)
`pipedream_2bw`   (d - 1) (F + B)      min(m, d - i)
================  ===================  ======================================

With ``v`` chunks a stage is ``v`` times smaller, and so are its F and B in this table,
and the bubble. The last column counts microbatches in all layers of a rank, for any
``v``. The bubble of `pipedream_2bw` comes once in a run, not once in each minibatch.
The docstrings have the conditions of each formula.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from divisible.schedules.actions import ScheduleError
from divisible.schedules.schedule import Schedule
from divisible.schedules.table import CODES


def check_positive(**numbers: int) -> None:
    """Checks that numbers are at least 1.

    Raises:
        ScheduleError: If one is less; the message has the name of the first such
            number.
    """
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
    check_positive(n_stages=n_stages, n_microbatches=n_microbatches)
    m = n_microbatches
    return collect([(s, "F" * m + "B" * m) for s in range(n_stages)], m, "gpipe")


def one_f_one_b(n_stages: int, n_microbatches: int) -> Schedule:
    """One forward, one backward in turn, once the pipeline is full (1F1B).

    Each stage runs only as many microbatches ahead as the pipeline needs to fill and
    then alternates. This takes as long as `gpipe`, but the activations that a stage
    holds do not grow with the number of microbatches.

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
    check_positive(n_stages=n_stages, n_microbatches=n_microbatches)
    d, m = n_stages, n_microbatches
    rows = [(s, _alternate(m, min(m, d - 1 - s))) for s in range(d)]
    return collect(rows, m, "1f1b")


def interleaved(n_ranks: int, n_chunks: int, n_microbatches: int) -> Schedule:
    """1F1B with several small stages on each rank.

    Stage ``s`` is on rank ``s % n_ranks``. A microbatch goes round the ranks
    ``n_chunks`` times, and the pipeline fills with stages that are ``n_chunks`` times
    shorter. Each rank takes ``n_ranks`` microbatches through one chunk before it
    turns to the next.

    The following holds if ``m`` is a multiple of ``d`` ranks, with ``v`` chunks and
    times F and B of one stage. The makespan is ``(v m + d - 1) (F + B)``. The bubble
    ``(d - 1) (F + B)`` is ``1 / v`` of the bubble of 1F1B on the same ranks, whose
    stages take ``v F`` and ``v B``. Rank ``i`` has
    ``min(v m, (v - 1) d + 2 (d - i) - 1) / v`` microbatches in flight. Each edge
    carries ``v`` times the messages.

    For any other ``m`` the schedule is the one for the next multiple of ``d``, without
    the surplus microbatches. Leaving whole microbatches out of an order breaks no
    dependency and cannot lengthen it, but the bubble is larger than the formula.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU
    Clusters Using Megatron-LM, SC 2021, section 2.2.

    Args:
        n_ranks: Number of ranks.
        n_chunks: Number of stages on each rank.
        n_microbatches: Number of microbatches, any.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If a number is less than 1.

    Example:
        >>> print(interleaved(n_ranks=2, n_chunks=2, n_microbatches=4))
        interleaved: 4 microbatches, 4 stages on ranks 0 1 0 1
        step      0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15  16  17
        rank 0  0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1   . 2B2   . 2B3 0B2 0B3
        rank 1    . 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3   .
    """
    check_positive(n_ranks=n_ranks, n_chunks=n_chunks, n_microbatches=n_microbatches)
    p, v = n_ranks, n_chunks
    chunk = chunks_in_turn(p, v, n_microbatches)
    rows = []
    for rank in range(p):
        ahead = min(len(chunk), 2 * (p - 1 - rank) + (v - 1) * p)
        kinds = _alternate(len(chunk), ahead)
        is_forward = np.array([*kinds]) == "F"
        stage = np.empty(len(kinds), int)
        stage[is_forward] = chunk * p + rank
        stage[~is_forward] = (v - 1 - chunk) * p + rank
        rows.append((stage, kinds))
    return collect(rows, n_microbatches, "interleaved")


def looped_bfs(n_ranks: int, n_chunks: int, n_microbatches: int) -> Schedule:
    """Several small stages on each rank, and the whole minibatch through each in turn.

    As in `interleaved`, stage ``s`` is on rank ``s % n_ranks``, but each rank takes
    the whole minibatch through one chunk before it turns to the next (breadth
    first). Work that is done once per stage and minibatch, such as gathering the
    stage's parameters or reducing its gradients, then overlaps with the other chunks.

    With ``m >= d`` ranks and times F and B of one stage: makespan
    ``(v m + d - 1) (F + B)``, bubble ``(d - 1) (F + B)``, ``1 / v`` of GPipe's. In
    flight on each rank: ``m`` microbatches, as much memory as GPipe.

    Source: Lamy-Poirier, Breadth-First Pipeline Parallelism, MLSys 2023.

    Args:
        n_ranks: Number of ranks.
        n_chunks: Number of stages on each rank.
        n_microbatches: Number of microbatches.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If a number is less than 1.

    Example:
        >>> print(looped_bfs(n_ranks=2, n_chunks=2, n_microbatches=3))
        looped_bfs: 3 microbatches, 4 stages on ranks 0 1 0 1
        step      0   1   2   3   4   5   6   7   8   9  10  11  12  13
        rank 0  0F0 0F1 0F2 2F0 2F1 2F2   .   . 2B0 2B1 2B2 0B0 0B1 0B2
        rank 1    . 1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2   .
    """
    check_positive(n_ranks=n_ranks, n_chunks=n_chunks, n_microbatches=n_microbatches)
    m = n_microbatches
    forward = np.repeat(np.arange(n_chunks) * n_ranks, m)
    there_and_back = np.concatenate([forward, forward[::-1]])
    kinds = "F" * len(forward) + "B" * len(forward)
    rows = [(there_and_back + rank, kinds) for rank in range(n_ranks)]
    return collect(rows, m, "looped_bfs")


def chunks_in_turn(n_ranks: int, n_chunks: int, n_microbatches: int) -> np.ndarray:
    """Returns the chunk of each forward of a rank, in order.

    Backwards use the chunks in reverse order.

    Args:
        n_ranks: Number of ranks, and of microbatches that go through a chunk in turn.
        n_chunks: Number of stages on each rank.
        n_microbatches: Number of microbatches. The last turn is full in any case.

    Example:
        >>> chunks_in_turn(n_ranks=2, n_chunks=2, n_microbatches=3)
        array([0, 0, 1, 1, 0, 0, 1, 1])
    """
    n_turns = -(-n_microbatches // n_ranks)
    return np.tile(np.repeat(np.arange(n_chunks), n_ranks), n_turns)


def _alternate(n: int, ahead: int) -> str:
    """Runs ``ahead`` of ``n`` forwards, then one and one backward in turn."""
    return "F" * ahead + "FB" * (n - ahead) + "B" * ahead


def collect(
    rows: Sequence[tuple[ArrayLike, str]], n_microbatches: int, name: str
) -> Schedule:
    """Builds a schedule in which every stage takes the microbatches in order.

    Args:
        rows: For each rank the stages of its actions in order, and the letters of their
            kinds. One number may stand for equal stages.
        n_microbatches: Number of microbatches. Surplus microbatches are left out.
        name: Name of the schedule.
    """
    kind = np.array([CODES[letter] for _, kinds in rows for letter in kinds], np.int8)
    stage = np.concatenate([np.broadcast_to(at, len(kinds)) for at, kinds in rows])
    # An action's microbatch is how many of its stage and kind come before it.
    what = stage * len(CODES) + kind
    order = np.argsort(what, kind="stable")
    first = np.flatnonzero(np.diff(what[order], prepend=-1))
    lengths = np.diff(first, append=len(what))
    microbatch = np.empty(len(what), int)
    microbatch[order] = np.arange(len(what)) - np.repeat(first, lengths)
    kept = microbatch < n_microbatches
    ends = np.cumsum([len(kinds) for _, kinds in rows])
    offsets = np.concatenate([[0], np.cumsum(kept)[ends - 1]])
    return Schedule.from_arrays(
        stage[kept], kind[kept], microbatch[kept], offsets, None, n_microbatches, name
    )
