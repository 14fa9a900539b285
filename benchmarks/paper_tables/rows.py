"""A row for each point: measured, predicted by equation (3), simulated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from divisible import Profile
from divisible.layer_costs import interpolate
from paper_tables.points import FIT, SAMPLES, SERIAL, Point
from paper_tables.profiles import profile_files
from paper_tables.samples import Sample, median, read
from paper_tables.simulations import PHASES, busy_speeds, predict, simulate


@dataclass(frozen=True)
class Row:
    """A measured point and what was to be expected.

    Attributes:
        point: What was measured.
        seconds: Of each step.
        serial: For each step that of the undivided model on one such host, in the same
            round: the machine may be faster in another.
        single: The same with one microbatch; empty if that was not measured.
        cuts: Where the model was cut.
        equation: Seconds by equation (3), whose constants come from three points of
            the same series; ``None`` on one host.
        predicted: For each step the seconds simulated from profiles of the layers on a
            whole core, and from what was measured right before it: the speed of busy
            hosts, how much their phases vary, and the delay of messages.
        relative_speed: Of the hosts before the steps, all together; 1 where it is their
            share of a core.
        simulated: For each step the seconds simulated from the times of its phases.
        bounds: For each step seconds that no schedule can fall below on hosts that are
            as fast as they were in it: those of the slowest layer in all microbatches,
            or of all layers spread evenly. How much of its stage a layer is say the
            profiles.
        probed_bound: The same by the profiles, on hosts as fast as before the steps.
        share_bound: The same on hosts as fast as their share of a core.
        stolen: Part of the machine's time that its hypervisor gave to others meanwhile,
            at most; ``None`` if that is not known of every sample.
        is_probe_whole: Whether all was measured before each step that is measured now.
    """

    point: Point
    seconds: list[float]
    serial: list[float]
    single: list[float]
    cuts: list[int]
    equation: float | None
    predicted: list[float]
    relative_speed: float
    simulated: list[float]
    bounds: list[float]
    probed_bound: float
    share_bound: float
    stolen: float | None
    is_probe_whole: bool

    @property
    def step(self) -> float:
        """Median seconds of a step."""
        return float(np.median(self.seconds))

    @property
    def speedup(self) -> float:
        """Over the undivided step, the median of the rounds."""
        return float(np.median(np.divide(self.serial, self.seconds)))

    @property
    def attained(self) -> float:
        """What part of a step nothing could have saved, in the median."""
        return float(np.median(np.divide(self.bounds, self.seconds)))

    def error(self, seconds: float | list[float]) -> float:
        """Returns the relative error of a prediction.

        Args:
            seconds: One for all steps, which is compared with their median, or one for
                each; the median error then.
        """
        if isinstance(seconds, list):
            return float(np.median(np.divide(seconds, self.seconds))) - 1
        return seconds / self.step - 1


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
    equations = {
        series: _equation(series, {p.microbatches: median(samples[p]) for p in group})
        for series, group in _by_series(measured).items()
    }
    for point in measured:
        if point.serial not in samples or point.schedule == SERIAL:
            continue
        equation = equations[point.series]
        files = profile_files(folder, point).values()
        profiles = [Profile.load(file) for file in files]
        hosts = point.on(cpu)
        cuts = samples[point][-1].cuts
        layers = layer_seconds(point, profiles)
        each = [busy_speeds(sample, profiles) for sample in samples[point]]
        on_hosts = layers / np.repeat(np.median(each, axis=0), np.diff(cuts))
        stolen = [sample.stolen for sample in samples[point]]
        found[point] = Row(
            point,
            [sample.seconds for sample in samples[point]],
            in_rounds_of(samples[point], samples[point.serial]),
            in_rounds_of(samples[point], samples.get(replace(point, microbatches=1))),
            cuts,
            None if equation is None else float(equation(point.microbatches)),
            [predict(sample, profiles, hosts) for sample in samples[point]],
            float(layers.sum() / on_hosts.sum()) / hosts.share,
            [simulate(sample, profiles, hosts) for sample in samples[point]],
            [_bound_of_step(s, layers, point.hosts) for s in samples[point]],
            bound(on_hosts, point.hosts),
            bound(layers / hosts.share, point.hosts),
            None if None in stolen else max(stolen),
            all(sample.probes for sample in samples[point]),
        )
    return found


def in_rounds_of(steps: list[Sample], others: list[Sample] | None) -> list[float]:
    """Returns for each step the seconds of another in the same round.

    Args:
        steps: Of one point.
        others: Of another. A round that has none gets the median of all.
    """
    if not others:
        return []
    seconds = {other.round: other.seconds for other in others}
    return [seconds.get(step.round, median(others)) for step in steps]


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


def _equation(series: Point, seconds: dict[int, float]):
    """Returns equation (3) with constants from three points, as a function of m."""
    from pipeline.performance_model import PerformanceModel

    chosen = fit_points(seconds)
    if series.hosts < 2 or len(chosen) < 3:
        return None
    return PerformanceModel.fit(series.hosts, chosen, [seconds[m] for m in chosen])


def layer_seconds(point: Point, profiles: list[Profile]) -> np.ndarray:
    """Returns the seconds of each layer in a step, on a whole core."""
    from pipeline.planning.prediction import microbatch_sizes

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
    n_stages, m = len(sample.cuts) - 1, sample.point.microbatches
    # Older samples have the means of the stages.
    each = [np.reshape(getattr(sample, name), (n_stages, -1)) for name in PHASES]
    stages = m * sum(seconds.mean(axis=1) for seconds in each)
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
