"""How long the messages of a partition take, as a function of its columns and rows.

A cost is any object with the two methods of :class:`OneToOne`, so that another network,
or another way to add up, can be described.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np


class CommunicationCost(Protocol):
    """The time of a partition's messages.

    The time is that of the slowest column, and of the exchange between the columns::

        total(max over columns of column(width, n_processors), n_columns)

    ``total`` must not fall as the first argument grows.
    """

    def column(self, width: np.ndarray, n_processors: np.ndarray) -> np.ndarray:
        """Returns the cost of a column, by its share of the samples and its size."""

    def total(self, slowest: np.ndarray, n_columns: np.ndarray) -> np.ndarray:
        """Returns the total cost, by the slowest column and the number of columns."""


class OneToOne(NamedTuple):
    """Equation (8) of Ozawa et al.: one processor receives, adds up, and sends the sum.

    ::

        a column       2 (k - 1) messages of l s width elements, all columns at once
        the columns    2 (C - 1) messages of (l + n) m elements, one after the other

    Attributes:
        n: Inputs of the network.
        m: Hidden units.
        l: Outputs.
        s: Samples.

    Example:
        >>> cost = OneToOne(203, 80, 26, 1024)
        >>> round(cost.total(cost.column(0.35, 3), 2), 1)
        73913.6
    """

    n: int
    m: int
    l: int  # noqa: E741  (the paper's letter)
    s: int

    def column(self, width: np.ndarray, n_processors: np.ndarray) -> np.ndarray:
        """Returns t' of equation (9), which depends on the partition of a column.

        Args:
            width: Share of the samples in the column.
            n_processors: Number of processors in the column.
        """
        return width * (n_processors - 1)

    def total(self, slowest: np.ndarray, n_columns: np.ndarray) -> np.ndarray:
        """Returns the number of elements in equation (8).

        Args:
            slowest: The largest value of :meth:`column`.
            n_columns: Number of columns.
        """
        between = 2 * (self.l + self.n) * self.m * (n_columns - 1)
        return 2 * self.l * self.s * slowest + between
