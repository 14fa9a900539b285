"""A unit square, cut into rectangles: units and samples of each processor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from divisible.records import plain_integer, plain_number
from heterogeneous import columns as search
from heterogeneous import picture
from heterogeneous.costs import CommunicationCost, OneToOne
from heterogeneous.rectangles import Rectangles

ORDERS = ("ascending", "any")
_REMEDY = "Give each processor a positive number, such as its work per second"


@dataclass(frozen=True)
class RectangularPartition(Rectangles):
    """Processors in columns, each with a rectangle of the unit square.

    ::

        1 +-------+-----------+
          |   2   |     4     |
          |       +-----------+       width: share of the samples
          +-------+     3     |       height: share of the hidden units
          |   1   |           |       area: share of the work
          +-------+           |
          |   0   |           |
        0 +-------+-----------+
          0                   1

    Processors of a column have the same samples and different hidden units: they add up
    the outputs of the network. Columns have different samples and all hidden units:
    they add up gradients.

    Attributes:
        columns: Numbers of the processors in each column, bottom first.
        widths: Share of each column in the samples, of the sum 1.
        heights: Shares of each column's processors in the hidden units, of the sum 1 in
            each column.
        abilities: Share of each processor in the work, of the sum 1.
        n: Inputs of the network.
        m: Hidden units.
        l: Outputs.
        s: Samples.
        cost: Time of messages.
        order: Argument ``order`` of :func:`rectangular_partition`; ``'ascending'`` for
            other partitions.
        communication_by_columns: Costs of the best partitions into 1 to N columns, if a
            search found this partition.
        table: Costs ``t(C, q)`` of equation (10) at ``[C - 1, q - 1]``; infinity where
            ``q < C``. ``None`` if no such table was made.

    Raises:
        ValueError: If there are fewer samples than columns, or fewer hidden units than
            a column has processors.
    """

    order: str = "ascending"
    communication_by_columns: np.ndarray | None = field(
        default=None, compare=False, repr=False
    )
    table: np.ndarray | None = field(default=None, compare=False, repr=False)

    def resized(self, abilities: Sequence[float]) -> RectangularPartition:
        """Returns a partition with the same columns, for other abilities.

        Columns keep their processors, and only the lines between them move: the
        remapping of columns in Fig. 8 of Ozawa et al.

        Args:
            abilities: Abilities of the processors, positive, of any sum.
        """
        return of_columns(
            self.columns,
            checked(abilities),
            (self.n, self.m, self.l, self.s),
            self.cost,
            self.order,
        )

    def remade(self, abilities: Sequence[float]) -> RectangularPartition:
        """Returns the best partition for other abilities, with any columns.

        Args:
            abilities: Abilities of the processors, positive, of any sum.
        """
        return rectangular_partition(
            abilities, self.n, self.m, self.l, self.s, order=self.order, cost=self.cost
        )

    def plot(self, path: str | os.PathLike) -> None:
        """Draws the square; needs matplotlib.

        Args:
            path: Path of the picture; the ending gives the format.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        picture.plot(self, path)

    def __str__(self) -> str:
        return picture.text(self)


def rectangular_partition(
    abilities: Sequence[float],
    n: int,
    m: int,
    l: int,  # noqa: E741
    s: int,
    *,
    order: str = "ascending",
    cost: CommunicationCost | None = None,
) -> RectangularPartition:
    """Cuts the unit square: areas are abilities, and messages take least time (SRPM).

    Static rectangular partitioning mapping, section 5 of Ozawa et al. (2005), equations
    (7) to (10) and Fig. 7.

    Args:
        abilities: Abilities of the processors, positive, of any sum: work per second.
        n: Inputs of the network.
        m: Hidden units.
        l: Outputs.
        s: Samples.
        order: ``'ascending'``, as in the paper: each column has processors that follow
            each other in ability. ``'any'``: a column has any processors, which is
            never worse. The result is the best of all up to 10 processors, and found by
            exchanges for more.
        cost: Time of messages; equation (8) if ``None``.

    Raises:
        TypeError, ValueError: If an ability is not a positive number, a size is not a
            positive integer, or ``order`` is unknown. If there are fewer samples than
            processors beside each other, or fewer hidden units than processors above
            each other.

    Example:
        Fig. 6 of the paper.

        >>> p = rectangular_partition([.05, .10, .20, .30, .35], 203, 80, 26, 1024)
        >>> p.columns, round(p.communication, 1)
        (((0, 1, 2), (3, 4)), 73913.6)
        >>> p.rectangles[3].samples, p.rectangles[3].units
        ((358, 1024), (0, 37))
        >>> any_order = rectangular_partition(
        ...     [.25, .31, .63, 1.0], 203, 80, 26, 1024, order='any')
        >>> any_order.columns
        ((0, 3), (1, 2))
    """
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    own, shape = checked(abilities), checked_shape(n, m, l, s)
    cost = OneToOne(*shape) if cost is None else cost
    by_ability = sorted(range(len(own)), key=lambda i: own[i])
    ascending = [own[i] for i in by_ability]
    t = search.table(ascending, cost)
    find = search.ascending if order == "ascending" else search.any_order
    found = find(ascending, cost, t)
    return of_columns(
        [[by_ability[i] for i in column] for column in found.columns],
        own,
        shape,
        cost,
        order,
        found.by_columns,
        t if order == "ascending" else None,
    )


def of_columns(
    columns: Sequence[Sequence[int]],
    abilities: tuple[float, ...],
    shape: tuple[int, int, int, int],
    cost: CommunicationCost,
    order: str = "ascending",
    by_columns: np.ndarray | None = None,
    table: np.ndarray | None = None,
) -> RectangularPartition:
    """Returns the partition with these columns whose areas are the abilities.

    Args:
        columns: Processors of each column, bottom first.
        abilities: Abilities of the processors, of the sum 1.
        shape: n, m, l and s.
        cost: Cost of messages.
        order: Order by which partitions for other abilities are searched.
        by_columns: Costs by number of columns, for :class:`RectangularPartition`.
        table: Table of equation (10), for :class:`RectangularPartition`.
    """
    widths = [sum(abilities[i] for i in column) for column in columns]
    heights = [
        tuple(abilities[i] / width for i in column)
        for column, width in zip(columns, widths)
    ]
    return RectangularPartition(
        tuple(map(tuple, columns)),
        tuple(widths),
        tuple(heights),
        abilities,
        *shape,
        cost,
        order,
        by_columns,
        table,
    )


def checked(abilities: Sequence[float]) -> tuple[float, ...]:
    """Returns abilities of the sum 1.

    Raises:
        TypeError, ValueError: If there are none, or one is not a positive number.
    """
    own = [plain_number(f"ability {i}", a, _REMEDY) for i, a in enumerate(abilities)]
    if not own:
        raise ValueError(f"there are no abilities. {_REMEDY}.")
    whole = sum(own)
    for i, ability in enumerate(own):
        # The share of the smallest may vanish if abilities are very different.
        if not ability / (whole or 1.0) > 0:
            raise ValueError(
                f"ability {i} is {ability}: it must be positive. {_REMEDY}."
            )
    return tuple(ability / whole for ability in own)


def checked_shape(*sizes: int) -> tuple[int, int, int, int]:
    """Returns n, m, l and s as plain numbers.

    Raises:
        TypeError, ValueError: If a size is not a positive integer.
    """
    names = "n, the inputs", "m, the hidden units", "l, the outputs", "s, the samples"
    found = [plain_integer(name, size) for name, size in zip(names, sizes)]
    for name, size in zip(names, found):
        if size < 1:
            raise ValueError(f"{name}, must be 1 or more, not {size}")
    return tuple(found)
