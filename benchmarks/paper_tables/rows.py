"""A row for each point: measured, predicted by equation (3), simulated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _hosts import Hosts

from divisible import Network, Plan, Profile
from divisible.layer_costs import interpolate
from paper_tables.points import FIT, PROBES, SAMPLES, SERIAL, Point
from paper_tables.samples import Sample, median, read, read_probes

#: The sizes of microbatch at which layers are profiled, as parts of the minibatch.
PROFILED = (1, 5, 20, 80)


def profile_files(folder: Path, point: Point) -> dict[int, Path]:
    """Returns where the profiles of a point's model are, by their samples."""
    sizes = sorted({-(-point.batch // parts) for parts in PROFILED})
    name = f"{point.model}-{point.size}"
    return {n: folder / "profiles" / f"{name}-{n}.json" for n in sizes}


@dataclass(frozen=True)
class Row:
    """A measured point and what was to be expected.

    Attributes:
        point: What was measured.
        seconds: Of each step.
        serial: Of each undivided step on one such host.
        cuts: Where the model was cut.
        equation: Seconds by equation (3), whose constants come from three points of
            the same series; ``None`` on one host.
        predicted: Seconds simulated from profiles of the layers on a whole core and
            the speed of the hosts, as a probe found it.
        relative_speed: Of the hosts in the probe; 1 where it is their share of a core.
        simulated: Seconds simulated from the times of the stages in these very steps.
        bound: Seconds that no schedule can fall below on hosts of this speed, by the
            profiles: those of the slowest layer in all microbatches, or of all layers
            spread evenly.
    """

    point: Point
    seconds: list[float]
    serial: list[float]
    cuts: list[int]
    equation: float | None
    predicted: float
    relative_speed: float
    simulated: float
    bound: float

    @property
    def step(self) -> float:
        """Median seconds of a step."""
        return float(np.median(self.seconds))

    @property
    def speedup(self) -> float:
        """Over the undivided step."""
        return float(np.median(self.serial)) / self.step

    def error(self, seconds: float) -> float:
        """Returns the relative error of a prediction."""
        return seconds / self.step - 1


def rows(folder: Path, points: Iterable[Point], cpu: float) -> dict[Point, Row]:
    """Returns a row for every point of which there are samples.

    Args:
        folder: Of the samples and profiles.
        points: What to look for.
        cpu: Of all hosts together, in cores.
    """
    samples, probes = read(folder / SAMPLES), read_probes(folder / PROBES)
    found = {}
    measured = [p for p in dict.fromkeys(points) if p in samples]
    equations = {
        series: _equation(series, {p.microbatches: median(samples[p]) for p in group})
        for series, group in _by_series(measured).items()
    }
    for point in measured:
        probe = probes.get((point.group, point.probe_samples))
        if point.serial not in samples or probe is None or point.schedule == SERIAL:
            continue
        equation = equations[point.series]
        files = profile_files(folder, point).values()
        profiles = [Profile.load(file) for file in files]
        # Without the loss, which a probe does not run.
        layers = interpolate(profiles, point.probe_samples).layers
        speed = sum(layer.seconds for layer in layers) / probe
        predicted, simulated, bound = _simulate(
            point, profiles, speed, samples[point], point.on(cpu)
        )
        found[point] = Row(
            point,
            [sample.seconds for sample in samples[point]],
            [sample.seconds for sample in samples[point.serial]],
            samples[point][-1].cuts,
            None if equation is None else float(equation(point.microbatches)),
            predicted,
            speed / point.on(cpu).share,
            simulated,
            bound,
        )
    return found


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


def _simulate(
    point: Point,
    profiles: list[Profile],
    speed: float,
    samples: list[Sample],
    hosts: Hosts,
) -> tuple[float, float, float]:
    """Returns the seconds simulated from profiles, from stages, and the bound."""
    from pipeline.planning.prediction import microbatch_sizes, predict, run

    cuts = samples[-1].cuts
    latency = float(np.median([sample.latency for sample in samples]))
    network = Network(hosts.bandwidth, latency)
    plan = Plan(cuts, n_microbatches=point.microbatches, schedule=point.schedule)
    timeline = predict(plan, profiles, batch=point.batch, network=network, speeds=speed)
    largest = interpolate(profiles, point.samples)
    edges = [cut - 1 for cut in cuts[1:-1]]
    transfer = largest.column("output_bytes")[edges] / hosts.bandwidth
    schedule, costs = _measured(point, samples, transfer, latency)
    sizes = microbatch_sizes(point.batch, point.microbatches)
    layers = [
        [layer.seconds for layer in interpolate(profiles, size).layers]
        for size in sizes
    ]
    busy = np.sum(layers, axis=0)
    bound = max(busy.max(), busy.sum() / point.hosts) / speed
    return timeline.makespan, run(schedule, costs, network).makespan, bound


def _measured(
    point: Point, samples: list[Sample], transfer: np.ndarray, latency: float
) -> tuple[Any, Any]:
    """Returns a point's schedule, and its costs from the times of the stages."""
    from pipeline import Costs, schedules

    stages = [
        np.mean([getattr(sample, name) for sample in samples], axis=0)
        for name in ("forward", "backward_input", "backward_weight")
    ]
    schedule = schedules.create(point.schedule, len(stages[0]), point.microbatches)
    return schedule, Costs(*stages, transfer=transfer, latency=latency)
