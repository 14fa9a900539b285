"""Sums within a column and between columns, always in the same order; results.

Sums have the same bits on all ranks, so copies of a hidden unit stay equal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from divisible.communication.waiting import kept_at_errors
from heterogeneous.messages import (
    LOSS,
    OUTPUTS,
    PART,
    READY,
    RESULTS,
    TOTAL,
    Messages,
    Pending,
)
from heterogeneous.moved_units import overlap
from heterogeneous.partition import RectangularPartition
from heterogeneous.units import Block

_WORD = np.zeros(1, np.uint8)


class ColumnSum(NamedTuple):
    """A sum over a column.

    Attributes:
        total: The sum.
        late: Seconds that this rank waited for other ranks to begin.
    """

    total: np.ndarray
    late: float


def column_sum(
    messages: Messages, partition: RectangularPartition, partial: np.ndarray
) -> ColumnSum:
    """Adds up arrays over the ranks of a column, from the bottom up.

    The rank at the bottom receives, adds up, and sends the sum to the others: the
    messages that equation (8) of Ozawa et al. counts. An announcement is sent before
    each array. The wait for an announcement is not counted as a rank's own time:
    otherwise all ranks of a column would seem as slow as the slowest.

    ::

        2   partial --ready, data--.                   .--> total
        1   partial --ready, data--+                   +--> total
        0   partial ---------------+--> 0 + 1 + 2 -----+--> total

    Args:
        messages: Messages of this rank.
        partition: Partition of the ranks.
        partial: Contiguous array in the host's memory, of the same shape in the whole
            column.
    """
    column = partition.columns[partition.rectangles[messages.rank].column]
    if len(column) == 1:
        return ColumnSum(partial, 0.0)
    if messages.rank != column[0]:
        return _told(messages, column[0], partial)
    pending: list[Pending] = []
    with kept_at_errors(pending):
        others = column[1:]
        words = [np.empty(1, np.uint8) for _ in others]
        parts = [np.empty_like(partial) for _ in others]
        ready = [
            messages.receive(rank, word, READY) for rank, word in zip(others, words)
        ]
        data = [
            messages.receive(rank, part, OUTPUTS) for rank, part in zip(others, parts)
        ]
        pending += [*ready, *data]
        late = _seconds_for(messages, ready)
        messages.wait(data)
        total = partial.copy()
        for part in parts:
            total += part
        sent = [
            messages.send(rank, array, kind)
            for rank in others
            for array, kind in ((_WORD, READY), (total, OUTPUTS))
        ]
        pending += sent
        messages.wait(sent)
    return ColumnSum(total, late)


def _told(messages: Messages, bottom: int, partial: np.ndarray) -> ColumnSum:
    """Sends this rank's part to the bottom rank, and waits for the sum."""
    pending: list[Pending] = []
    with kept_at_errors(pending):
        word, total = np.empty(1, np.uint8), np.empty_like(partial)
        ready = messages.receive(bottom, word, READY)
        data = messages.receive(bottom, total, OUTPUTS)
        sent = [
            messages.send(bottom, _WORD, READY),
            messages.send(bottom, partial, OUTPUTS),
        ]
        pending += [ready, data, *sent]
        late = _seconds_for(messages, [ready])
        messages.wait([data, *sent])
    return ColumnSum(total, late)


def _seconds_for(messages: Messages, pending: list[Pending]) -> float:
    start = time.perf_counter()
    messages.wait(pending)
    return time.perf_counter() - start


class Segment(NamedTuple):
    """Hidden units that are on the same ranks, one rank of each column.

    ::

        column    0       1
                +---+  +-----+
                |   |  |  4  |
                | 2 |  |     |     units 37 to 79:  ranks 2, 4
                |   |  +-----+
                |   |  |  3  |     units 34 to 36:  ranks 2, 3
                +---+  |     |
                | 1 |  |     |     units 11 to 33:  ranks 1, 3
                +---+  |     |
                | 0 |  |     |     units 0 to 10:   ranks 0, 3
                +---+  +-----+

    Attributes:
        start: The first unit.
        stop: The unit after the last.
        ranks: Ranks that have the units, by column.
        collector: Rank that adds up; segments take turns among the columns.
    """

    start: int
    stop: int
    ranks: tuple[int, ...]
    collector: int


def segments(partition: RectangularPartition) -> list[Segment]:
    """Returns the segments of all units, from the bottom up.

    Example:
        >>> from heterogeneous import rectangular_partition
        >>> p = rectangular_partition([.05, .10, .20, .30, .35], 203, 80, 26, 1024)
        >>> [(each.start, each.ranks, each.collector) for each in segments(p)]
        [(0, (0, 3), 0), (11, (1, 3), 3), (34, (2, 3), 2), (37, (2, 4), 4)]
    """
    lines = sorted({r.units[0] for r in partition.rectangles} | {partition.m})
    found = []
    for i, units in enumerate(zip(lines, lines[1:])):
        ranks = tuple(
            rank
            for column in partition.columns
            for rank in column
            if _has(partition, rank, units)
        )
        found.append(Segment(*units, ranks, ranks[i % len(ranks)]))
    return found


def _has(partition: RectangularPartition, rank: int, units: tuple[int, int]) -> bool:
    start, stop = overlap(partition.rectangles[rank].units, units)
    return start < stop


def sum_between_columns(
    messages: Messages, of_all: Sequence[Segment], block: Block
) -> None:
    """Adds up the gradients of each hidden unit over the columns, in place.

    Only units that two ranks have in common travel between them.

    Args:
        messages: Messages of this rank.
        of_all: Segments of all units.
        block: Gradients of this rank's units.
    """
    me = messages.rank
    own = [each for each in of_all if me in each.ranks and len(each.ranks) > 1]
    pending: list[Pending] = []
    with kept_at_errors(pending):
        # All receives come first, so that no message waits in between.
        incoming: list[list[Pending]] = []
        for start, stop, ranks, collector in own:
            sources = [r for r in ranks if r != me] if collector == me else [collector]
            arrays = [block.empty(start, stop) for _ in sources]
            kind = PART if collector == me else TOTAL
            incoming.append(
                [messages.receive(r, a, kind) for r, a in zip(sources, arrays)]
            )
            pending += incoming[-1]
        for start, stop, _, collector in own:
            if collector != me:
                array = block.pack(start, stop)
                pending.append(messages.send(collector, array, PART))
        for segment, received in zip(own, incoming):
            start, stop, ranks, collector = segment
            if collector != me:
                continue
            messages.wait(received)
            parts = {each.peer: each.array for each in received}
            parts[me] = block.pack(start, stop)
            total = parts[ranks[0]].copy()
            for rank in ranks[1:]:
                total += parts[rank]
            block.unpack(total, start, stop)
            pending += [messages.send(r, total, TOTAL) for r in ranks if r != me]
        for segment, received in zip(own, incoming):
            if segment.collector != me:
                messages.wait(received)
                block.unpack(received[0].array, segment.start, segment.stop)
        messages.wait(pending)


def sum_of_columns(
    messages: Messages, partition: RectangularPartition, mine: np.ndarray
) -> np.ndarray:
    """Adds up a small array over the columns; ranks of a column have the same array.

    Args:
        messages: Messages of this rank.
        partition: Partition of the ranks.
        mine: Array of this rank's column.
    """
    if partition.n_columns == 1:
        return mine
    bottoms = [column[0] for column in partition.columns]
    me, collector = messages.rank, bottoms[0]
    total = mine.copy()
    pending: list[Pending] = []
    with kept_at_errors(pending):
        if me == collector:
            parts = [np.empty_like(mine) for _ in bottoms[1:]]
            for rank, part in zip(bottoms[1:], parts):
                pending.append(messages.receive(rank, part, LOSS))
            messages.wait(pending)
            for part in parts:
                total += part
            everyone = range(partition.n_processors)
            pending += [messages.send(r, total, LOSS) for r in everyone if r != me]
        else:
            pending.append(messages.receive(collector, total, LOSS))
            if me in bottoms:
                pending.append(messages.send(collector, mine, LOSS))
        messages.wait(pending)
    return total


def tell_columns(
    messages: Messages,
    partition: RectangularPartition,
    results: np.ndarray,
    ranges: Sequence[tuple[int, int]],
) -> None:
    """Sends each column's results to the ranks of the other columns.

    Args:
        messages: Messages of this rank.
        partition: Partition of the ranks.
        results: Results of all samples; other columns' are written in place.
        ranges: First sample of each column, and the one after its last.
    """
    pending: list[Pending] = []
    with kept_at_errors(pending):
        for column, (start, stop) in zip(partition.columns, ranges):
            others = set(range(partition.n_processors)) - set(column)
            if start == stop:
                continue
            if messages.rank == column[0]:
                pending += [
                    messages.send(rank, results[start:stop], RESULTS)
                    for rank in sorted(others)
                ]
            elif messages.rank in others:
                pending.append(
                    messages.receive(column[0], results[start:stop], RESULTS)
                )
        messages.wait(pending)
