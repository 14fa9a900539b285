"""The checks of DRPM: measurements, and the partition that follows from them.

Nothing here sends a message or reads a clock::

    processor 0   Measurements --> Summary --.
    processor 1   Measurements --> Summary --+--> outcome: an action, a partition
    processor 2   Measurements --> Summary --'
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterogeneous.estimates import (
    PAPER_LAST,
    Action,
    ability,
    decide,
    of_now,
    ratio,
)
from heterogeneous.partition import RectangularPartition


class Summary(NamedTuple):
    """The results of a processor's measurements, which it sends at a check.

    Attributes:
        seconds: t1 of an iteration, in seconds: forward, messages within the column,
            backward.
        ability: Work per second, by t1.
        computing_ability: Work per second, by t2, the backward alone.
    """

    seconds: float
    ability: float
    computing_ability: float


class Check(NamedTuple):
    """A check of a :class:`~heterogeneous.Remapper`.

    Attributes:
        iteration: Number of iterations before the check.
        seconds: Seconds that the iterations since the last check took on rank 0,
            without remapping.
        ratio: The shortest t1 of a rank over the longest.
        action: ``'whole'``, ``'line'``, or ``None`` if nothing moved.
        abilities: Abilities of all ranks, of the sum 1: by t2 for ``'whole'``, by t1
            otherwise.
        per_column: Number of ranks in each column after the check.
        slowest: The rank with the longest t1, for which the others waited.
    """

    iteration: int
    seconds: float
    ratio: float
    action: Action | None
    abilities: tuple[float, ...]
    per_column: tuple[int, ...]
    slowest: int


class Outcome(NamedTuple):
    """The decision of a check.

    Attributes:
        action: Action of :class:`Check`.
        partition: Partition after the check.
        abilities: Abilities of :class:`Check`.
        ratio: The shortest t1 of a rank over the longest.
        slowest: The rank with the longest t1.
    """

    action: Action | None
    partition: RectangularPartition
    abilities: tuple[float, ...]
    ratio: float
    slowest: int


class Measurements:
    """The measured iterations of one processor.

    Args:
        last: Number of the newest iterations that count, the paper's L, also from
            before a check. ``None`` for all since the last check; without the filter,
            ``None`` is the paper's 6.
        filter: Whether only iterations count that resemble the newest ones, by
            :func:`~heterogeneous.estimates.of_now`.

    Example:
        >>> for filter in (True, False):
        ...     measurements = Measurements(filter=filter)
        ...     for seconds in (2, 2, 2, 20, 2, 2):
        ...         measurements.add(100, seconds, seconds)
        ...     print(round(measurements.summary().ability, 2))
        50.0
        7.14
    """

    def __init__(self, last: int | None = None, filter: bool = True) -> None:
        if last is None and not filter:
            last = PAPER_LAST
        self._last, self._is_filtered = last, filter
        self._rows: deque[tuple[float, float, float]] = deque(maxlen=last)

    def add(self, work: float, t1: float, t2: float) -> None:
        """Adds an iteration.

        Args:
            work: Units times samples.
            t1: Seconds of forward, messages within the column, and backward.
            t2: Seconds of the backward alone.
        """
        self._rows.append((work, t1, t2))

    def summary(self) -> Summary:
        """Returns the results so far; without ``last``, forgets the measurements."""
        work, t1, t2 = np.array(self._rows, np.float64).T
        if self._last is None:
            self._rows.clear()
        counts, counts_2 = (
            of_now(each) if self._is_filtered else np.ones(len(each), bool)
            for each in (t1, t2)
        )
        return Summary(
            float(t1[counts].mean()),
            ability(work[counts], t1[counts], last=None),
            ability(work[counts_2], t2[counts_2], last=None),
        )


def outcome(
    partition: RectangularPartition,
    summaries: Sequence[Summary],
    *,
    check: int,
    has_initial: bool,
    whole: float,
    line: float,
) -> Outcome:
    """Decides on a remapping, and finds the partition.

    Args:
        partition: Partition so far.
        summaries: Summaries of all processors.
        check: Number of the check, from 1 on.
        has_initial: Whether training began with estimates of the abilities.
        whole: Ratio of times below which everything is mapped again.
        line: Ratio of times below which lines move.
    """
    times = [each.seconds for each in summaries]
    action = decide(times, check=check, has_initial=has_initial, whole=whole, line=line)
    new = partition
    if action == "whole":
        # Messages will change, so only the computation counts.
        new = partition.remade([each.computing_ability for each in summaries])
    elif action == "line":
        new = partition.resized([each.ability for each in summaries])
    if new.rectangles == partition.rectangles:
        # Rounded to whole units and samples, nothing changes.
        action, new = None, partition
    total = sum(each.ability for each in summaries)
    abilities = tuple(each.ability / total for each in summaries)
    return Outcome(
        action,
        new,
        new.abilities if action else abilities,
        ratio(times),
        int(np.argmax(times)),
    )
