"""A row for each point: measured, and by the paper's equation (3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.paper_tables.points import FIT, SERIAL, Point
from benchmarks.paper_tables.samples import Sample
from divisible.schedules.paper_model import PerformanceModel


@dataclass(frozen=True)
class Row:
    """A measured point, and predictions of it.

    Attributes:
        point: The measured point.
        seconds: Seconds of each step.
        serial: Seconds of the undivided model on one such host in the same round, for
            each step: the machine may be faster in another round. A missing round is
            replaced by the last one, here and below. See `undivided`.
        single: Seconds with one microbatch, for each step; empty if they were not
            measured.
        cuts: Positions of the cuts.
        equation: Seconds by equation (3) for each step, whose constants come from three
            points of the same series and round; empty on one host.
        is_fitted: Whether this is one of the three.
        stolen: Largest part of the machine's time that its hypervisor gave to others
            meanwhile; ``None`` if that is not known for every sample.
        is_scaled: Whether the seconds of the undivided model are those of a host with
            another share of a core, in proportion.
    """

    point: Point
    seconds: list[float]
    serial: list[float]
    single: list[float]
    cuts: list[int]
    equation: list[float]
    is_fitted: bool
    stolen: float | None
    is_scaled: bool

    @property
    def step(self) -> float:
        """Median seconds of a step."""
        return float(np.median(self.seconds))

    @property
    def is_older(self) -> bool:
        """Whether some samples are of an older version of the measurement."""
        return self.stolen is None

    @property
    def speedup(self) -> float:
        """The speed-up over the undivided step, the median of the rounds."""
        return float(np.median(np.divide(self.serial, self.seconds)))

    @property
    def speedup_by_equation(self) -> float:
        """The speed-up by equation (3); not a number on one host."""
        if not self.equation:
            return np.nan
        return float(np.median(np.divide(self.serial, self.equation)))

    @property
    def error_of_equation(self) -> float:
        """Relative error of equation (3), the median of the rounds."""
        if not self.equation:
            return np.nan
        return float(np.median(np.divide(self.equation, self.seconds))) - 1


def rows(
    samples: Mapping[Point, list[Sample]], points: Iterable[Point]
) -> dict[Point, Row]:
    """Returns a row for every point that has samples.

    Args:
        samples: Samples of each point.
        points: Points to find.
    """
    measured = [p for p in dict.fromkeys(points) if p in samples]
    of_series: dict[Point, dict[int, list[Sample]]] = {}
    for point in measured:
        series = of_series.setdefault(point.series, {})
        series[point.microbatches] = samples[point]
    found = {}
    for point in measured:
        serial = undivided(point, samples)
        if not serial or point.schedule == SERIAL:
            continue
        mine, series = samples[point], of_series[point.series]
        stolen = [sample.stolen for sample in mine]
        rounds = [in_round(series, sample.round) for sample in mine]
        found[point] = Row(
            point=point,
            seconds=[sample.seconds for sample in mine],
            serial=in_rounds_of(mine, serial),
            single=in_rounds_of(mine, samples.get(replace(point, microbatches=1))),
            cuts=mine[-1].cuts,
            equation=by_equation(point, rounds),
            is_fitted=point.microbatches in fit_points(series),
            stolen=None if None in stolen else max(stolen),
            is_scaled=serial is not samples.get(point.serial),
        )
    return found


def undivided(point: Point, samples: Mapping[Point, list[Sample]]) -> list[Sample]:
    """Returns the samples of the undivided step that a point is compared with.

    The step is taken by one host. Where it was not measured with such hosts, it was
    measured on a host with a larger share of a core. Then its seconds are those times
    the ratio of the shares: the core seconds are the same.
    """
    if point.serial in samples:
        return samples[point.serial]
    wanted = point.serial.on_any_hosts
    others = [p for p in samples if p.schedule == SERIAL and p.on_any_hosts == wanted]
    if not others:
        return []
    nearest = samples[min(others, key=lambda other: other.hosts)]
    share = samples[point][-1].share
    return [
        replace(one, seconds=one.seconds * one.share / share, share=share)
        for one in nearest
    ]


def in_rounds_of(steps: list[Sample], others: list[Sample] | None) -> list[float]:
    """Returns for each step the seconds of another in the same round.

    Args:
        steps: Steps of one point.
        others: Steps of another point.
    """
    if not others:
        return []
    return [of_round(others, step.round).seconds for step in steps]


def in_round(series: Mapping[int, list[Sample]], number: int) -> dict[int, Sample]:
    """Returns a sample of each point of a series, of a round."""
    return {m: of_round(samples, number) for m, samples in series.items()}


def of_round(samples: Sequence[Sample], number: int) -> Sample:
    """Returns the sample of a round, or the last if that was not measured."""
    return next((s for s in samples if s.round == number), samples[-1])


def fit_points(microbatches: Iterable[int]) -> list[int]:
    """Returns the three numbers of microbatches to fit equation (3) to.

    Those of Fig. 12 if there are all of them, and else the least above one, the
    greatest, and one in the middle.
    """
    found = sorted(set(microbatches))
    if set(FIT) <= set(found):
        return list(FIT)
    found = [m for m in found if m > 1] if len(found) > 3 else found
    return found if len(found) < 3 else [found[0], found[len(found) // 2], found[-1]]


def by_equation(point: Point, rounds: Iterable[Mapping[int, Sample]]) -> list[float]:
    """Returns a step's seconds by equation (3), fitted to three points of each round.

    Args:
        point: The step.
        rounds: Samples of its series by their number of microbatches.
    """
    found = []
    for samples in rounds:
        chosen = fit_points(samples)
        if point.hosts > 1 and len(chosen) == len(FIT):
            seconds = [samples[m].seconds for m in chosen]
            model = PerformanceModel.fit(point.hosts, chosen, seconds)
            found.append(float(model(point.microbatches)))
    return found
