"""Samples that may be compared: of one arithmetic, and of one origin."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path

from benchmarks.paper_tables.arithmetic import OFF, ON, UNSTATED, Arithmetic
from benchmarks.paper_tables.points import DATA, SAMPLES, Point, Scale, figures
from benchmarks.paper_tables.rows import Row, rows
from benchmarks.paper_tables.samples import Sample, read


@dataclass(frozen=True)
class Campaign:
    """Samples with the same arithmetic.

    Attributes:
        arithmetic: Kernels and provider of the samples.
        is_baseline: Whether they are not this run's: the repository has them, or they
            are from before there were kernels.
        figures: Points of each figure.
        samples: Samples of each point.
        rows: Row of each point that can be compared with the undivided step.
    """

    arithmetic: Arithmetic
    is_baseline: bool
    figures: dict[int, list[Point]]
    samples: dict[Point, list[Sample]]
    rows: dict[Point, Row]

    @property
    def title(self) -> str:
        """The arithmetic in words, and whether this is a baseline."""
        return f"{'baseline, ' * self.is_baseline}{self.arithmetic.title}"

    @property
    def name(self) -> str:
        """The same as a part of a file's name."""
        parts = ["-baseline"] * (self.is_baseline and self.arithmetic != Arithmetic())
        if self.arithmetic.kernels != UNSTATED:
            parts.append(f"-kernels-{self.arithmetic.kernels}")
        if self.arithmetic.kernels == ON:
            parts.append(f"-{self.arithmetic.provider}")
        return "".join(parts)

    @property
    def has_update(self) -> bool:
        """Whether the steps have the update."""
        return any(point.update for point in self.rows)

    def machines(self) -> list[str]:
        """Returns a line for each machine, with the libraries and the dates."""
        dates: dict[str, set[str]] = {}
        for sample in itertools.chain.from_iterable(self.samples.values()):
            libraries = f", {sample.library}" if sample.library else ""
            dates.setdefault(sample.machine + libraries, set()).add(sample.date)
        return [
            f"Measured on {machine}, {' to '.join(sorted({min(d), max(d)}))}."
            for machine, d in sorted(dates.items())
        ]


def campaigns_of(data: Path, scale: Scale) -> list[Campaign]:
    """Returns the campaigns of a folder, and behind them the repository's.

    Args:
        data: Folder of the samples.
        scale: Sizes of the experiments there.
    """
    found = _campaigns(data, scale, False)
    if data.resolve() != DATA.resolve():
        found += _campaigns(DATA, Scale(), True)
    return sorted(found, key=lambda each: each.is_baseline)


def _campaigns(data: Path, scale: Scale, is_baseline: bool) -> list[Campaign]:
    groups: dict[tuple, dict[Point, list[Sample]]] = {}
    for point, samples in read(data / SAMPLES).items():
        groups.setdefault((point.arithmetic, point.update), {})[point] = samples
    order = [ON, OFF, UNSTATED]
    found = []
    for (arithmetic, update), samples in sorted(
        groups.items(), key=lambda item: order.index(item[0][0].kernels)
    ):
        each = figures(dataclasses.replace(scale, arithmetic=arithmetic, update=update))
        points = itertools.chain.from_iterable(each.values())
        is_old = arithmetic.kernels == UNSTATED
        found.append(
            Campaign(
                arithmetic,
                is_baseline or is_old,
                each,
                samples,
                rows(samples, points),
            )
        )
    return found
