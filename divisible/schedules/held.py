"""The microbatches that a schedule holds in memory, moment by moment.

From its F to its B or I a microbatch is *in flight*: its stage holds the input. From F,
or R where there is one, the stage also holds the activations, the *graph* of the
backward. From I to W it holds the arrays that weight gradients need, the *pending* W::

                 F ..... R ..... I ..... W
    in flight    =================
    graph                =========            without R from F on
    pending                       ========

While a microbatch waits on a disk, nothing of it counts
(`divisible.schedules.absences`). While it waits in fewer bits, between two actions of
its own, it takes a part of its bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from divisible.schedules.absences import absences, away
from divisible.schedules.actions import FORWARD, RECOMPUTE
from divisible.schedules.dependencies import NONE
from divisible.schedules.table import Table

# Rows: in flight, graph, pending. Columns: the change by an action of each kind.
_CHANGES = np.array([[1, -1, -1, 0, 0], [1, -1, -1, 0, 1], [0, 0, 1, -1, 0]])


class Report(NamedTuple):
    """The peaks of a valid schedule's memory.

    A unit is one microbatch in all layers of a rank: each of a rank's ``n`` stages
    holds an ``n``-th of it. So schedules with one stage on a rank and with several
    compare. A whole backward (B) or input gradient (I) frees the activations. An I
    leaves its W pending, which keeps the stage's inputs and output gradients. Where the
    forward is recomputed, only the stage's input is held between F and R.

    Attributes:
        in_flight: For each rank the peak of held activations, from F, or R where
            there is one, to B or I.
        stage_in_flight: For each stage the peak of held activations, in microbatches of
            that stage.
        pending: For each rank the peak of pending weight gradients, from I to W.
        held: For each rank the peak of activations and pending weight gradients
            together.
        inputs: For each rank the peak of inputs that wait for R, from F on.
    """

    in_flight: tuple[float, ...]
    stage_in_flight: tuple[int, ...]
    pending: tuple[float, ...]
    held: tuple[float, ...]
    inputs: tuple[float, ...]


class Moments(NamedTuple):
    """The moments at which the stages of a schedule may hold most.

    Whatever the sizes of an input, a graph and a pending W, a stage never holds more
    than at the worst of these moments. A moment is left out if another one has at
    least as many of all kinds, those that wait in fewer bits counted by themselves.
    Stages with fewer moments than others have zeros in the last rows.

    Attributes:
        in_flight: Microbatches from F to B or I, of shape (n_moments, n_stages).
        graphs: Microbatches in flight whose activations are held, of that shape.
        pending: Microbatches from I to W, of that shape.
        waiting: Microbatches among those in flight that wait in fewer bits, of that
            shape.
        waiting_graphs: Microbatches among them whose activations are held, of that
            shape.
    """

    in_flight: np.ndarray
    graphs: np.ndarray
    pending: np.ndarray
    waiting: np.ndarray
    waiting_graphs: np.ndarray

    @property
    def has_pending(self) -> np.ndarray:
        """Whether each stage has pending W at some moment, of shape (n_stages,)."""
        return (self.pending > 0).any(axis=0)


def report(schedule: Table) -> Report:
    """Counts the microbatches that a schedule holds at its peak.

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
    """Converts microbatches of stages to the unit of :class:`Report`.

    Args:
        counts: For each rank the sum of the microbatches that its stages hold.
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
    saved: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[int, ...]:
    """Returns the sizes that each rank holds at its peak.

    Args:
        schedule: A valid schedule.
        activation: For each stage the size of a microbatch's input and activations.
        pending: For each stage the size of the arrays that a pending W keeps.
        checkpoint: For each stage the size of the input alone.
        on_disk: For each stage whether its microbatches wait on a disk.
        saved: For each stage the part of ``activation``, and that of ``checkpoint``,
            that is saved while a microbatch waits in fewer bits. Those on a disk count
            with all.

    Returns:
        For each rank the peak, rounded to an integer.
    """
    change = size_changes(schedule, activation, pending, checkpoint)
    if on_disk is not None and np.any(on_disk):
        absent = _absent(schedule, on_disk)
        sizes = np.stack([checkpoint, activation - checkpoint])
        size = (absent.counts * sizes[:, absent.stage]).sum(axis=0)
        np.subtract.at(change, absent.gone, size)
        np.add.at(change, absent.back, size)
    if saved is None or not np.any(saved):
        return _peaks(change, schedule.action_ranks, schedule.n_ranks)
    activation_saved, checkpoint_saved = saved
    sizes = np.stack([checkpoint_saved, activation_saved - checkpoint_saved])
    waiting = _waiting(schedule, on_disk)
    size = (waiting.counts * sizes[:, waiting.stage]).sum(axis=0)
    fewer = np.zeros_like(change)
    np.add.at(fewer, waiting.gone, size)
    np.subtract.at(fewer, waiting.back, size)
    during = np.cumsum(change) - np.minimum(change, 0.0) - np.cumsum(fewer)
    return _largest_of(during, schedule.action_ranks, schedule.n_ranks)


def size_changes(
    schedule: Table,
    activation: np.ndarray,
    pending: np.ndarray,
    checkpoint: np.ndarray,
) -> np.ndarray:
    """Returns by how much each action changes the size that its rank holds.

    What an action adds is there from its start on; what it frees, until its end.

    Args:
        schedule: See :func:`peaks`.
        activation: See :func:`peaks`.
        pending: See :func:`peaks`.
        checkpoint: See :func:`peaks`.

    Returns:
        A size of either sign for each action, of shape ``(n_actions,)``.

    Example:
        >>> from divisible.schedules import Schedule
        >>> schedule = Schedule([["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"]])
        >>> one, none = np.ones(1), np.zeros(1)
        >>> size_changes(schedule, activation=3 * one, pending=one, checkpoint=none)
        array([ 3.,  3., -2., -1., -2., -1.])
    """
    sizes = np.stack([checkpoint, activation - checkpoint, pending])
    return (_changes(schedule) * sizes[:, schedule.stage]).sum(axis=0)


def moments(
    schedule: Table,
    on_disk: np.ndarray | None = None,
    in_half: bool = False,
) -> Moments:
    """Finds when the stages of a schedule may hold most.

    Args:
        schedule: A valid schedule.
        on_disk: For each stage whether its microbatches wait on a disk.
        in_half: Whether microbatches wait in fewer bits; on a disk they count with all.

    Returns:
        For each stage the moments at which it may hold most.

    Example:
        >>> from divisible.schedules import zero_bubble_h1
        >>> counts = moments(zero_bubble_h1(n_stages=3, n_microbatches=4))
        >>> for each in counts[:3]:
        ...     print(each.tolist())
        [[2, 1, 0], [3, 2, 1]]
        [[2, 1, 0], [3, 2, 1]]
        [[1, 2, 3], [0, 1, 2]]
    """
    # A stage's actions are all on one rank, so a stable sort keeps their order.
    order = np.argsort(schedule.stage, kind="stable")
    stage, change = schedule.stage[order], _changes(schedule)[:, order]
    places = stage * order.size + order

    def add(changes: np.ndarray, absent: _Absent, sign: int) -> None:
        # A change counts from the first action of the same stage that comes after it.
        for sign_, action in ((sign, absent.gone), (-sign, absent.back)):
            at = np.searchsorted(places, absent.stage * order.size + action)
            for row, count in enumerate(absent.counts):
                np.add.at(changes[row], at, sign_ * count)

    if on_disk is not None and np.any(on_disk):
        add(change, _absent(schedule, on_disk), -1)
    held, fewer = np.cumsum(change, axis=1), np.zeros((2, order.size), np.int64)
    if in_half:
        add(fewer, _waiting(schedule, on_disk), 1)
        fewer = np.tile(np.cumsum(fewer, axis=1), 2)
        # An action widens its microbatch first, and rounds it or frees it last.
        held = np.concatenate([held - change, held], axis=1)
        stage = np.tile(stage, 2)
        # Microbatches with all bits are compared with each other.
        held[:2] -= fewer
        held = np.concatenate([held, fewer])
    else:
        # Between two actions that free something, a stage only holds more and more.
        full = np.flatnonzero((change < 0).any(axis=0)) - 1
        held, stage = np.concatenate([held, fewer])[:, full], stage[full]
    rows = np.unique(np.stack([stage, *held], axis=1), axis=0)
    starts = np.searchsorted(rows[:, 0], np.arange(1, schedule.n_stages))
    each = [_largest(part[:, 1:]) for part in np.split(rows, starts)]
    table = np.zeros((5, max(1, *map(len, each)), schedule.n_stages), np.int64)
    for number, part in enumerate(each):
        table[:, : len(part), number] = part.T
    table[:2] += table[3:]
    return Moments(*table)


class _Absent(NamedTuple):
    """Microbatches that are on disk, or wait in fewer bits, each between two actions.

    Attributes:
        stage: The stage of each microbatch.
        gone: The number of the first action during which it is away.
        back: The number of the first action during which it is back.
        counts: 1 or 0 for its input and for its graph: whether the stage holds it
            otherwise.
    """

    stage: np.ndarray
    gone: np.ndarray
    back: np.ndarray
    counts: np.ndarray


def _absent(schedule: Table, on_disk: np.ndarray) -> _Absent:
    gone, back = away(schedule, on_disk)
    return _counted(schedule, gone, back, back + 1)


def _waiting(schedule: Table, on_disk: np.ndarray | None) -> _Absent:
    """Returns the microbatches that wait in fewer bits, in memory."""
    in_memory = None if on_disk is None else ~np.asarray(on_disk, bool)
    leaves, returns = absences(schedule, in_memory)
    return _counted(schedule, leaves + 1, returns, returns)


def _counted(
    schedule: Table, gone: np.ndarray, back: np.ndarray, returns: np.ndarray
) -> _Absent:
    # Only the input of a microbatch is held until its forward runs again.
    has_graph = schedule.kind[returns] != RECOMPUTE
    counts = np.stack([np.ones_like(gone), has_graph.astype(gone.dtype)])
    return _Absent(schedule.stage[returns], gone, back, counts)


def _changes(schedule: Table) -> np.ndarray:
    """Returns by how much each action changes the counts, of shape (3, n_actions)."""
    kind, stage, microbatch = schedule.kind, schedule.stage, schedule.microbatch
    change = _CHANGES[:, kind] * schedule.count
    if kind.max(initial=FORWARD) == FORWARD:
        return np.zeros_like(change)
    again = kind == RECOMPUTE
    if again.any():
        is_recomputed = np.zeros((schedule.n_stages, schedule.n_microbatches), bool)
        is_recomputed[stage[again], microbatch[again]] = True
        change[1, (kind == FORWARD) & is_recomputed[stage, microbatch]] = 0
    return change


def _peaks(change: np.ndarray, owner: np.ndarray, n_owners: int) -> tuple[int, ...]:
    """Returns the peak of each owner, whose changes are adjacent and sum up to zero."""
    return _largest_of(np.cumsum(change), owner, n_owners)


def _largest_of(
    amount: np.ndarray, owner: np.ndarray, n_owners: int
) -> tuple[int, ...]:
    """Returns the largest amount of each owner, whose amounts are adjacent."""
    first = np.flatnonzero(np.diff(owner, prepend=NONE))
    peak = np.zeros(n_owners)
    if first.size:
        peak[owner[first]] = np.maximum.reduceat(amount, first)
    return tuple(np.rint(peak).astype(np.int64).tolist())


def _largest(rows: np.ndarray) -> np.ndarray:
    """Leaves out rows that are nowhere larger than another row; no two are equal."""
    # No other row is as large in every column as the row with the largest sum.
    left = rows[np.argsort(-rows.sum(axis=1), kind="stable")]
    largest = [left[:0]]
    while len(left):
        largest.append(left[:1])
        left = left[(left > left[0]).any(axis=1)]
    return np.unique(np.concatenate(largest), axis=0)
