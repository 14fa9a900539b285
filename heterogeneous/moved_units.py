"""Hidden units that travel when a partition replaces another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heterogeneous.partition import RectangularPartition

Units = tuple[int, int]


class Transfer(NamedTuple):
    """Hidden units that one processor gives to another.

    Attributes:
        source: Number of the processor that sends.
        target: Number of the processor that receives.
        start: The first unit.
        stop: The unit after the last.
    """

    source: int
    target: int
    start: int
    stop: int


def transfers(
    before: RectangularPartition, after: RectangularPartition
) -> list[Transfer]:
    """Returns the transfers after which each processor has its units.

    A processor gets missing units from processors of the column that it was in, which
    together have each unit once. So where columns stay, units pass between neighbours
    above each other, and nothing crosses to other columns (Fig. 8 of Ozawa et al.).

    ::

        before   |--- 0 ---|------ 1 ------|        [0, 20)   [20, 80)
        after    |----- 0 -----|---- 1 ----|        [0, 30)   [30, 80)
                           ====                     1 gives [20, 30) to 0

    Args:
        before: The present partition.
        after: The next partition, of the same processors and units.

    Raises:
        ValueError: If the partition is of other processors or units.

    Example:
        >>> from heterogeneous import rectangular_partition
        >>> before = rectangular_partition([20, 60], 9, 80, 9999, 1)
        >>> after = before.resized([30, 50])
        >>> transfers(before, after)
        [Transfer(source=1, target=0, start=20, stop=30)]
    """
    check_same_work(before, after)
    return between(before, [r.units for r in after.rectangles])


def check_same_work(before: RectangularPartition, after: RectangularPartition) -> None:
    """Checks that partitions are of the same processors and units.

    Raises:
        ValueError: If they are not.
    """
    for what, theirs, ours in (
        ("processors", after.n_processors, before.n_processors),
        ("inputs", after.n, before.n),
        ("hidden units", after.m, before.m),
        ("outputs", after.l, before.l),
    ):
        if theirs != ours:
            raise ValueError(
                f"the partition has {theirs} {what}, and the one before {ours}: make"
                f" one of the same processors and units"
            )


def between(before: RectangularPartition, wanted: Sequence[Units]) -> list[Transfer]:
    """Returns the transfers after which each processor has the units that it wants.

    Args:
        before: The present partition.
        wanted: First unit of each processor, and the unit after its last.
    """
    found = []
    for target, units in enumerate(wanted):
        own = before.rectangles[target]
        for lacking in _without(units, own.units):
            for source in before.columns[own.column]:
                start, stop = overlap(lacking, before.rectangles[source].units)
                if start < stop:
                    found.append(Transfer(source, target, start, stop))
    return found


def overlap(one: Units, other: Units) -> Units:
    """Returns the units that two ranges have in common; an empty range without any."""
    start = max(one[0], other[0])
    return start, max(start, min(one[1], other[1]))


def _without(units: Units, there: Units) -> Iterator[Units]:
    """Yields the ranges of units that are missing in a range of present units."""
    start, stop = overlap(units, there)
    if start == stop:
        yield units
        return
    if units[0] < start:
        yield units[0], start
    if stop < units[1]:
        yield stop, units[1]
