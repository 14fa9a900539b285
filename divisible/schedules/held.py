"""The microbatches that a schedule holds in memory, moment by moment.

From its F to its B or I a microbatch is *in flight*: its stage holds the input. From F,
or R where there is one, it holds the activations, the *graph* of the backward, as well.
From I to W it keeps what the weight gradients need, which are *pending*::

                 F ..... R ..... I ..... W
    in flight    =================
    graph                =========            without R from F on
    pending                       ========

What waits on a disk is in neither of them meanwhile (`divisible.schedules.absences`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from divisible.schedules.absences import away
from divisible.schedules.actions import FORWARD, RECOMPUTE
from divisible.schedules.dependencies import NONE
from divisible.schedules.table import Table

# What an action of each kind adds to those in flight, to the graphs and to the pending.
_CHANGES = np.array([[1, -1, -1, 0, 0], [1, -1, -1, 0, 1], [0, 0, 1, -1, 0]])


class Report(NamedTuple):
    """The peaks of a valid schedule's memory.

    A unit is one microbatch in all layers of a rank: of a rank's ``n`` stages each
    holds an ``n``-th of it. So schedules with one stage on a rank and with several
    compare. A whole backward (B) or input gradient (I) frees the activations; an I
    leaves its W pending, which keeps the stage's inputs and output gradients. Where the
    forward is recomputed (R), only the stage's input is held between the two.

    Attributes:
        in_flight: For each rank the peak of held activations, from F, or R where
            there is one, to B or I.
        stage_in_flight: For each stage the peak of held activations, in microbatches of
            its own.
        pending: For each rank the peak of pending weight gradients, from I to W.
        held: For each rank the peak of both together.
        inputs: For each rank the peak of inputs that wait for R, from F on.
    """

    in_flight: tuple[float, ...]
    stage_in_flight: tuple[int, ...]
    pending: tuple[float, ...]
    held: tuple[float, ...]
    inputs: tuple[float, ...]


class Moments(NamedTuple):
    """The moments at which the stages of a schedule may hold most.

    Whatever an input, a graph and a pending W take, a stage never holds more than at
    the worst of these moments. None of a stage's is as much as another in all three.
    Stages that have fewer of them than others have empty ones.

    Attributes:
        in_flight: Microbatches from F to B or I, of shape (n_moments, n_stages).
        graphs: Those of them whose activations are held, of that shape.
        pending: Microbatches from I to W, of that shape.
    """

    in_flight: np.ndarray
    graphs: np.ndarray
    pending: np.ndarray


def report(schedule: Table) -> Report:
    """Counts what a schedule holds at its peak.

    Args:
        schedule: A valid schedule. With forward actions only, nothing is held.

    Returns:
        The peaks.
    """
    in_flight, graphs, pending = _changes(schedule)
    order = np.argsort(schedule.stage, kind="stable")
    n_stages = np.bincount(schedule.stage_ranks, minlength=schedule.n_ranks)

    def of_ranks(change: np.ndarray) -> tuple[float, ...]:
        counts = _peaks(change, schedule.action_ranks, schedule.n_ranks)
        return tuple(in_layers_of_ranks(counts, n_stages).tolist())

    return Report(
        in_flight=of_ranks(graphs),
        stage_in_flight=_peaks(graphs[order], schedule.stage[order], schedule.n_stages),
        pending=of_ranks(pending),
        held=of_ranks(graphs + pending),
        inputs=of_ranks(in_flight - graphs),
    )


def in_layers_of_ranks(counts: ArrayLike, n_stages: ArrayLike) -> np.ndarray:
    """Returns stages' microbatches in the unit of :class:`Report`.

    Args:
        counts: For each rank how many microbatches its stages hold, added up.
        n_stages: For each rank the number of its stages.

    Example:
        >>> in_layers_of_ranks([8, 3], n_stages=[2, 1])
        array([4., 3.])
    """
    return np.asarray(counts) / np.maximum(n_stages, 1)


def peaks(
    schedule: Table,
    activation: np.ndarray,
    pending: np.ndarray,
    checkpoint: np.ndarray,
    on_disk: np.ndarray | None = None,
) -> tuple[int, ...]:
    """Weighs what each rank holds at its peak.

    Args:
        schedule: A valid schedule.
        activation: For each stage the size of a microbatch's input and activations.
        pending: For each stage the size of what a pending W keeps.
        checkpoint: For each stage the size of the input alone.
        on_disk: For each stage whether its microbatches wait there.

    Returns:
        For each rank the peak, rounded to an integer.
    """
    sizes = np.stack([checkpoint, activation - checkpoint, pending])
    change = (_changes(schedule) * sizes[:, schedule.stage]).sum(axis=0)
    if on_disk is not None and np.any(on_disk):
        absent = _absent(schedule, on_disk)
        size = (absent.counts * sizes[:2, absent.stage]).sum(axis=0)
        np.subtract.at(change, absent.gone, size)
        np.add.at(change, absent.back, size)
    return _peaks(change, schedule.action_ranks, schedule.n_ranks)


def moments(schedule: Table, on_disk: np.ndarray | None = None) -> Moments:
    """Finds when the stages of a schedule may hold most.

    Args:
        schedule: A valid schedule.
        on_disk: For each stage whether its microbatches wait there.

    Returns:
        For each stage the moments that no other one outdoes.

    Example:
        >>> from divisible.schedules import zero_bubble_h1
        >>> for counts in moments(zero_bubble_h1(n_stages=3, n_microbatches=4)):
        ...     print(counts.tolist())
        [[2, 1, 0], [3, 2, 1]]
        [[2, 1, 0], [3, 2, 1]]
        [[1, 2, 3], [0, 1, 2]]
    """
    # A stage's actions are all on one rank, so a stable sort keeps their order.
    order = np.argsort(schedule.stage, kind="stable")
    stage, change = schedule.stage[order], _changes(schedule)[:, order]
    if on_disk is not None and np.any(on_disk):
        absent = _absent(schedule, on_disk)
        # From the first action of the same stage on that sees it gone.
        places = stage * order.size + order
        for sign, action in ((-1, absent.gone), (1, absent.back)):
            at = np.searchsorted(places, absent.stage * order.size + action)
            for row, count in enumerate(absent.counts):
                np.add.at(change[row], at, sign * count)
    # In between what is held only grows, until an action frees something.
    full = np.flatnonzero((change < 0).any(axis=0)) - 1
    rows = np.stack([stage[full], *np.cumsum(change, axis=1)[:, full]], axis=1)
    rows = np.unique(rows, axis=0)
    starts = np.searchsorted(rows[:, 0], np.arange(1, schedule.n_stages))
    each = [_largest(part[:, 1:]) for part in np.split(rows, starts)]
    table = np.zeros((3, max(1, *map(len, each)), schedule.n_stages), np.int64)
    for number, part in enumerate(each):
        table[:, : len(part), number] = part.T
    return Moments(*table)


class _Absent(NamedTuple):
    """Microbatches that are on disk, each from one action on until another.

    Attributes:
        stage: Whose they are.
        gone: The number of the first action without it.
        back: The number of the first action with it again.
        counts: For the input and for the graph, whether it is held at all.
    """

    stage: np.ndarray
    gone: np.ndarray
    back: np.ndarray
    counts: np.ndarray


def _absent(schedule: Table, on_disk: np.ndarray) -> _Absent:
    gone, back = away(schedule, on_disk)
    # Until its forward runs again, of a microbatch there is only the input.
    has_graph = schedule.kind[back + 1] != RECOMPUTE
    counts = np.stack([np.ones_like(gone), has_graph.astype(gone.dtype)])
    return _Absent(schedule.stage[back + 1], gone, back, counts)


def _changes(schedule: Table) -> np.ndarray:
    """Returns what each action adds, of shape (3, n_actions)."""
    kind, stage, microbatch = schedule.kind, schedule.stage, schedule.microbatch
    change = _CHANGES[:, kind]
    if kind.max(initial=FORWARD) == FORWARD:
        return np.zeros_like(change)
    again = kind == RECOMPUTE
    if again.any():
        is_recomputed = np.zeros((schedule.n_stages, schedule.n_microbatches), bool)
        is_recomputed[stage[again], microbatch[again]] = True
        change[1, (kind == FORWARD) & is_recomputed[stage, microbatch]] = 0
    return change


def _peaks(change: np.ndarray, owner: np.ndarray, n_owners: int) -> tuple[int, ...]:
    """Adds up changes; each owner's lie side by side, and end with nothing held."""
    first = np.flatnonzero(np.diff(owner, prepend=NONE))
    peak = np.zeros(n_owners)
    if first.size:
        peak[owner[first]] = np.maximum.reduceat(np.cumsum(change), first)
    return tuple(np.rint(peak).astype(np.int64).tolist())


def _largest(rows: np.ndarray) -> np.ndarray:
    """Leaves out of different rows those that another one outdoes."""
    # None outdoes the one with the largest sum, and that one most of the others.
    left = rows[np.argsort(-rows.sum(axis=1), kind="stable")]
    largest = [left[:0]]
    while len(left):
        largest.append(left[:1])
        left = left[(left > left[0]).any(axis=1)]
    return np.unique(np.concatenate(largest), axis=0)
