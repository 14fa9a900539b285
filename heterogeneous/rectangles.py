"""A unit square that is cut into rectangles, one for each processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from divisible.planning.shares import integer_shares
from divisible.records import shown
from heterogeneous.costs import CommunicationCost


class Rectangle(NamedTuple):
    """The part of the square that a processor has.

    Attributes:
        processor: Number of the processor.
        column: Number of the processor's column.
        x: Left side, as a share of the samples.
        y: Lower side, as a share of the hidden units.
        width: Share of the samples.
        height: Share of the hidden units.
        samples: First sample, and the one after the last.
        units: First hidden unit, and the one after the last.
    """

    processor: int
    column: int
    x: float
    y: float
    width: float
    height: float
    samples: tuple[int, int]
    units: tuple[int, int]

    @property
    def n_samples(self) -> int:
        """Number of the processor's samples."""
        return self.samples[1] - self.samples[0]

    @property
    def n_units(self) -> int:
        """Number of the processor's hidden units."""
        return self.units[1] - self.units[0]

    @property
    def work(self) -> int:
        """Units times samples; the processor's time is about proportional."""
        return self.n_units * self.n_samples


@dataclass(frozen=True)
class Rectangles:
    """Columns of processors, with the rectangle of each in the unit square.

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

    Raises:
        ValueError: If there are fewer samples than columns, or fewer hidden units than
            a column has processors.
    """

    columns: tuple[tuple[int, ...], ...]
    widths: tuple[float, ...]
    heights: tuple[tuple[float, ...], ...]
    abilities: tuple[float, ...]
    n: int
    m: int
    l: int  # noqa: E741  (the paper's letter)
    s: int
    cost: CommunicationCost

    def __post_init__(self) -> None:
        if self.s < self.n_columns:
            raise ValueError(
                f"there are {self.s} samples for {self.n_columns} columns of"
                f" processors, {shown(self.columns)}: give at least as many samples, or"
                f" fewer processors"
            )
        for c, column in enumerate(self.columns):
            if self.m < len(column):
                raise ValueError(
                    f"there are {self.m} hidden units for the {len(column)} processors"
                    f" of column {c}, {shown(column)}: give at least as many units, or"
                    f" fewer processors"
                )

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.columns)

    @property
    def n_processors(self) -> int:
        """Number of processors."""
        return len(self.abilities)

    @property
    def per_column(self) -> tuple[int, ...]:
        """Number of processors in each column."""
        return tuple(map(len, self.columns))

    @cached_property
    def communication(self) -> float:
        """Time of the messages: equation (8), or that of another cost."""
        sizes = np.array(self.per_column)
        slowest = np.max(self.cost.column(np.array(self.widths), sizes))
        return float(self.cost.total(slowest, self.n_columns))

    @cached_property
    def rectangles(self) -> tuple[Rectangle, ...]:
        """The rectangle of each processor, by its number."""
        found: dict[int, Rectangle] = {}
        x = 0.0
        samples = self.samples_of(self.s, least=1)
        for c, (column, width) in enumerate(zip(self.columns, self.widths)):
            units = _ranges(integer_shares(self.heights[c], self.m))
            y = 0.0
            for processor, height, own in zip(column, self.heights[c], units):
                found[processor] = Rectangle(
                    processor, c, x, y, width, height, samples[c], own
                )
                y += height
            x += width
        return tuple(found[i] for i in range(len(found)))

    def samples_of(self, n_samples: int, least: int = 0) -> list[tuple[int, int]]:
        """Returns the first of each column's samples, and the one after its last.

        Args:
            n_samples: Number of all samples, which may differ from the partition's.
            least: Least number of samples in a column.
        """
        return _ranges(integer_shares(self.widths, n_samples, least))


def _ranges(sizes: Sequence[int]) -> list[tuple[int, int]]:
    ends = np.cumsum(sizes).tolist()
    return [(end - size, end) for size, end in zip(sizes, ends)]
