"""A claim of the paper, and the points in which it is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.paper_tables.points import AS_PRINTED, EQUAL_LAYERS, RATE
from benchmarks.paper_tables.rows import Row, fit_points
from divisible.schedules.paper_model import PerformanceModel

#: Numbers that differ by this part at most are the same: the paper's figures have no
#: error bars, and rounds here differ by some per cent.
TOLERANCE = 0.1


class Result(NamedTuple):
    """A comparison of points with a claim.

    Attributes:
        here: Numbers that were measured here.
        is_reproduced: Whether they agree with the paper.
        why: Other numbers of the same points, which explain it.
    """

    here: str
    is_reproduced: bool
    why: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        place: Section and figure.
        text: The claim in words.
        paper: The paper's numbers.
        check: Function that compares; it returns ``None`` where points are missing.
    """

    place: str
    text: str
    paper: str
    check: Callable[[Measured], Result | None]


class Measured:
    """Rows of points, to pick from.

    Args:
        rows: Rows in any order.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = list(rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, **wanted: object) -> Measured:
        """Returns the rows of points with these attributes, such as ``hosts=4``."""
        return Measured(
            row
            for row in self
            if all(getattr(row.point, name) == value for name, value in wanted.items())
        )

    def by(self, name: str) -> dict[Any, Measured]:
        """Returns the rows by an attribute of their points, in its order."""
        values = sorted({getattr(row.point, name) for row in self})
        return {value: self.of(**{name: value}) for value in values}

    def usual(self, model: str) -> Measured:
        """Returns the rows of a model with the links and the size that most have."""
        mine = self.of(model=model, rate=RATE)
        sizes = [row.point.size for row in mine]
        return mine.of(size=max(sorted(set(sizes)), key=sizes.count, default=None))

    def in_the_papers_way(self) -> Measured:
        """Returns the rows as in the paper; with its cut and 1F1B if there are none."""
        return self.of(way=AS_PRINTED) or self.of(way=EQUAL_LAYERS)

    @property
    def fastest(self) -> Row:
        """The row with the greatest speed-up."""
        return max(self, key=attrgetter("speedup"))

    def equation(self) -> PerformanceModel | None:
        """Fits equation (3) to the median steps of one series, if it has three."""
        rows = {row.point.microbatches: row for row in self}
        chosen = fit_points(rows)
        if len(chosen) < 3:
            return None
        (hosts,) = self.by("hosts")
        return PerformanceModel.fit(hosts, chosen, [rows[m].step for m in chosen])


def over_single(row: Row) -> float:
    """Returns the speed-up over the same hosts with one microbatch."""
    return float(np.median(np.divide(row.single, row.seconds)))


def ideal(hosts: int, turns: int) -> float:
    """Returns the speed-up by equation (2), which is that of equal stages."""
    return hosts * turns / (turns + hosts - 1)


def listed(numbers: Iterable[float], form: str = ".2f") -> str:
    """Formats numbers with commas between."""
    return ", ".join(format(number, form) for number in numbers)


def never_rises(numbers: Sequence[float]) -> bool:
    """Returns whether each number is at most the one before, up to `TOLERANCE`."""
    return all(b <= a * (1 + TOLERANCE) for a, b in zip(numbers, numbers[1:]))


def are_close(numbers: Sequence[float], others: Sequence[float]) -> bool:
    """Returns whether numbers differ by `TOLERANCE` at most."""
    return all(abs(a / b - 1) <= TOLERANCE for a, b in zip(numbers, others))
