"""A row for each point: measured, predicted by equation (3), simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.paper_tables.points import FIT, SAMPLES, SERIAL, Point
from benchmarks.paper_tables.profiles import profile_files
from benchmarks.paper_tables.samples import Sample, read
from benchmarks.paper_tables.simulations import (
    replay,
    simulate,
    stage_seconds,
    whole_core_seconds,
)
from divisible import Profile
from divisible.planning.interpolation import interpolate


@dataclass(frozen=True)
class Row:
    """A measured point and what was to be expected.

    Attributes:
        point: What was measured.
        seconds: Of each step.
        serial: For each step that of the undivided model on one such host, in the same
            round: the machine may be faster in another. Of what was not measured in a
            round its last one is taken, here and below.
        single: The same with one microbatch; empty if that was not measured.
        cuts: Where the model was cut.
        equation: For each step the seconds by equation (3), whose constants come from
            three points of the same series and round; empty on one host.
        is_fitted: Whether this is one of the three.
        simulated: For each step the seconds simulated from profiles of the layers on a
            whole core, and from the hosts' speed in other steps of the same series and
            round; empty if there are none.
        is_between: Whether there are some with fewer and some with more microbatches.
        replayed: For each step the seconds simulated from the times of its own phases.
        relative_speed: Of the hosts in the steps, all together; 1 where it is their
            share of the core that the profiles were measured on.
        bounds: For each step seconds that no schedule can fall below on hosts that are
            as fast as they were in it: those of the slowest layer in all microbatches,
            or of all layers spread evenly. How much of its stage a layer is say the
            profiles.
        share_bound: The same by the profiles, on hosts as fast as their share of a
            core.
        stolen: Part of the machine's time that its hypervisor gave to others meanwhile,
            at most; ``None`` if that is not known of every sample.
    """

    point: Point
    seconds: list[float]
    serial: list[float]
    single: list[float]
    cuts: list[int]
    equation: list[float]
    is_fitted: bool
    simulated: list[float]
    is_between: bool
    replayed: list[float]
    relative_speed: float
    bounds: list[float]
    share_bound: float
    stolen: float | None

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
        """Over the undivided step, the median of the rounds."""
        return float(np.median(np.divide(self.serial, self.seconds)))

    @property
    def attained(self) -> float:
        """What part of a step nothing could have saved, in the median."""
        return float(np.median(np.divide(self.bounds, self.seconds)))

    def error(self, predicted: list[float]) -> float:
        """Returns the relative error of a prediction for each step, the median."""
        return float(np.median(np.divide(predicted, self.seconds))) - 1


def rows(folder: Path, points: Iterable[Point], cpu: float) -> dict[Point, Row]:
    """Returns a row for every point of which there are samples.

    Args:
        folder: Of the samples and profiles.
        points: What to look for.
        cpu: Of all hosts together, in cores.
    """
    samples = read(folder / SAMPLES)
    found = {}
    measured = [p for p in dict.fromkeys(points) if p in samples]
    all_series, shown = _by_series(samples), _by_series(measured)
    for point in measured:
        if point.serial not in samples or point.schedule == SERIAL:
            continue
        files = profile_files(folder, point).values()
        profiles = [Profile.load(file) for file in files]
        hosts = point.on(cpu)
        mine, m = samples[point], point.microbatches
        # Points beyond its ends are not in the tables.
        series = {p.microbatches: samples[p] for p in all_series[point.series]}
        fitted = {p.microbatches: samples[p] for p in shown[point.series]}
        layers = layer_seconds(point, profiles)
        others = [others_in_round(series, sample) for sample in mine]
        simulated = [
            simulate(point, sample.cuts, steps, profiles, hosts)
            for sample, steps in zip(mine, others)
            if steps
        ]
        speeds = [
            whole_core_seconds(sample, profiles).sum() / stage_seconds(sample).sum()
            for sample in mine
        ]
        stolen = [sample.stolen for sample in mine]
        rounds = [in_round(fitted, sample.round) for sample in mine]
        found[point] = Row(
            point=point,
            seconds=[sample.seconds for sample in mine],
            serial=in_rounds_of(mine, samples[point.serial]),
            single=in_rounds_of(mine, samples.get(replace(point, microbatches=1))),
            cuts=mine[-1].cuts,
            equation=by_equation(point, rounds),
            is_fitted=m in fit_points(fitted),
            simulated=simulated,
            is_between=all(steps and min(steps) < m < max(steps) for steps in others),
            replayed=[replay(sample, profiles, hosts) for sample in mine],
            relative_speed=float(np.median(speeds)) / hosts.share,
            bounds=[_bound_of_step(sample, layers, point.hosts) for sample in mine],
            share_bound=bound(layers / hosts.share, point.hosts),
            stolen=None if None in stolen else max(stolen),
        )
    return found


def in_rounds_of(steps: list[Sample], others: list[Sample] | None) -> list[float]:
    """Returns for each step the seconds of another in the same round.

    Args:
        steps: Of one point.
        others: Of another.
    """
    if not others:
        return []
    return [of_round(others, step.round).seconds for step in steps]


def in_round(series: Mapping[int, list[Sample]], number: int) -> dict[int, Sample]:
    """Returns a sample of each point of a series, of a round."""
    return {m: of_round(samples, number) for m, samples in series.items()}


def others_in_round(
    series: Mapping[int, list[Sample]], sample: Sample
) -> dict[int, Sample]:
    """Returns samples of other points of a series, of the same round and machine.

    If there are none, the last of each point. A point that was added later may have got
    the number of an old round on another machine.
    """
    others = {m: s for m, s in series.items() if m != sample.point.microbatches}
    found = {
        m: other
        for m, samples in others.items()
        for other in samples
        if (other.round, other.machine) == (sample.round, sample.machine)
    }
    return found or {m: samples[-1] for m, samples in others.items()}


def of_round(samples: Sequence[Sample], number: int) -> Sample:
    """Returns the sample of a round, or the last if that was not measured."""
    return next((s for s in samples if s.round == number), samples[-1])


def _by_series(points: Iterable[Point]) -> dict[Point, list[Point]]:
    found: dict[Point, list[Point]] = {}
    for point in points:
        found.setdefault(point.series, []).append(point)
    return found


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
    from divisible.schedules.paper_model import PerformanceModel

    found = []
    for samples in rounds:
        chosen = fit_points(samples)
        if point.hosts > 1 and len(chosen) == len(FIT):
            seconds = [samples[m].seconds for m in chosen]
            model = PerformanceModel.fit(point.hosts, chosen, seconds)
            found.append(float(model(point.microbatches)))
    return found


def layer_seconds(point: Point, profiles: list[Profile]) -> np.ndarray:
    """Returns the seconds of each layer in a step, on a whole core."""
    from divisible.planning.prediction import microbatch_sizes

    sizes = microbatch_sizes(point.batch, point.microbatches)
    layers = [
        [layer.seconds for layer in interpolate(profiles, size).layers]
        for size in sizes
    ]
    return np.sum(layers, axis=0)


def bound(layers: np.ndarray, n_hosts: int) -> float:
    """Returns seconds that no schedule of these layers can fall below."""
    return float(max(layers.max(), layers.sum() / n_hosts))


def _bound_of_step(sample: Sample, layers: np.ndarray, n_hosts: int) -> float:
    """Returns that bound for hosts as fast as they were in a measured step."""
    stages = stage_seconds(sample)
    return bound(seconds_in_step(layers, sample.cuts, stages), n_hosts)


def seconds_in_step(
    layers: Sequence[float], cuts: Sequence[int], stages: Sequence[float]
) -> np.ndarray:
    """Returns the seconds of each layer in a step, from those of its stage.

    Args:
        layers: Seconds of each elsewhere, as which they share those of their stage.
        cuts: Between the stages.
        stages: Seconds that each computed in the step.
    """
    parts = np.divide(stages, np.add.reduceat(layers, cuts[:-1]))
    return np.multiply(layers, np.repeat(parts, np.diff(cuts)))
