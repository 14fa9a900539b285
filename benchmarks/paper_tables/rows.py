"""A row for each point: measured, predicted by equation (3), simulated."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from _hosts import Hosts

from divisible import Network, Plan, Profile
from divisible.layer_costs import interpolate
from paper_tables.models import transfers
from paper_tables.points import FIT, SAMPLES, SERIAL, Point
from paper_tables.samples import Sample, median, read

if TYPE_CHECKING:
    from pipeline import Schedule, Timeline

#: The sizes of microbatch at which layers are profiled, as parts of the minibatch.
PROFILED = (1, 5, 20, 80)
#: What a stage does with a microbatch, in the order of `pipeline.Costs`.
PHASES = ("forward", "backward_input", "backward_weight")
#: How often phases are drawn that vary, and how often it is asked how much hosts wait.
DRAWS, WAITING_ROUNDS = 10, 3


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
        predicted: For each step the seconds simulated from profiles of the layers on a
            whole core, and from what was measured right before it: the speed of busy
            hosts, how much it varies, and the delay of messages.
        relative_speed: Of the hosts before the steps; 1 where it is their share of a
            core.
        simulated: For each step the seconds simulated from the times of its phases.
        bound: Seconds that no schedule can fall below on hosts of this speed, by the
            profiles: those of the slowest layer in all microbatches, or of all layers
            spread evenly.
        is_warm: Whether it is known that the steps found their memory in the process.
    """

    point: Point
    seconds: list[float]
    serial: list[float]
    cuts: list[int]
    equation: float | None
    predicted: list[float]
    relative_speed: float
    simulated: list[float]
    bound: float
    is_warm: bool

    @property
    def step(self) -> float:
        """Median seconds of a step."""
        return float(np.median(self.seconds))

    @property
    def speedup(self) -> float:
        """Over the undivided step."""
        return float(np.median(self.serial)) / self.step

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
        speed = float(np.median([busy_speed(s, profiles) for s in samples[point]]))
        found[point] = Row(
            point,
            [sample.seconds for sample in samples[point]],
            [sample.seconds for sample in samples[point.serial]],
            samples[point][-1].cuts,
            None if equation is None else float(equation(point.microbatches)),
            [predict(sample, profiles, hosts) for sample in samples[point]],
            speed / hosts.share,
            [simulate(sample, profiles, hosts) for sample in samples[point]],
            _bound(point, profiles) / speed,
            all(sample.pages is not None for sample in samples[point]),
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


def busy_speed(sample: Sample, profiles: list[Profile]) -> float:
    """Returns how fast busy hosts were before a step, where a whole core has 1."""
    # Without the loss, which busy hosts did not run.
    layers = interpolate(profiles, sample.probed).layers
    return sum(layer.seconds for layer in layers) / sum(sample.busy)


def predict(sample: Sample, profiles: list[Profile], hosts: Hosts) -> float:
    """Simulates a step before it runs.

    What the profiles say is divided by the speed of hosts that are all busy. A host
    that waits at times may be faster: it has quota left when its turn comes, and the
    others use the caches less. What that saves was measured as well, with all hosts but
    one waiting; it is as much for a long phase as for a short one. How much the hosts
    wait says the simulation itself. And phases vary, because a host that has used its
    quota stops: each takes its time times a random number whose mean is 1.

    Returns:
        Seconds, on average over `DRAWS` simulations.
    """
    from pipeline.planning import prediction

    point, n_stages = sample.point, len(sample.cuts) - 1
    speed = busy_speed(sample, profiles)
    plan = Plan(sample.cuts, n_microbatches=point.microbatches, schedule=point.schedule)
    schedule = _schedule(sample)
    sizes = prediction.microbatch_sizes(point.batch, point.microbatches)
    network = Network(hosts.bandwidth, sample.delay)
    costs = prediction.stage_costs(plan, schedule, profiles, sizes, network, speed)

    def run(factors: Iterable[float | np.ndarray]) -> Timeline:
        times = {
            name: factor * getattr(costs, name) for name, factor in zip(PHASES, factors)
        }
        changed = dataclasses.replace(costs, **times)
        return prediction.run(schedule, changed, network)

    factor = 1.0
    if sample.turns and n_stages > 1:
        alone = sum(sample.turns) / sum(sample.busy[: len(sample.turns)])
        saved = (1 - alone) * sample.probed / point.samples
        for _ in range(WAITING_ROUNDS):
            # At most all but one of the stages wait.
            waiting = run([factor] * 3).bubble.mean() / (1 - 1 / n_stages)
            factor = 1 - saved * min(1.0, waiting)
    variance = max(np.mean(sample.spread) ** 2, 1e-12)
    random = np.random.RandomState(0)
    shape = n_stages, point.microbatches
    return statistics.fmean(
        run(factor * random.gamma(1 / variance, variance, (3, *shape))).makespan
        for _ in range(DRAWS)
    )


def simulate(sample: Sample, profiles: list[Profile], hosts: Hosts) -> float:
    """Simulates a step from the seconds of its phases and of its messages."""
    from pipeline import Costs
    from pipeline.planning import prediction

    transfer = transfers(sample.point, sample.cuts, profiles, hosts)
    network = Network(hosts.bandwidth, sample.latency)
    times = (getattr(sample, name) for name in PHASES)
    costs = Costs(*times, transfer=transfer, latency=sample.latency)
    return prediction.run(_schedule(sample), costs, network).makespan


def _schedule(sample: Sample) -> Schedule:
    from pipeline import schedules

    point, n_stages = sample.point, len(sample.cuts) - 1
    return schedules.create(point.schedule, n_stages, point.microbatches)


def _bound(point: Point, profiles: list[Profile]) -> float:
    """Returns seconds that no schedule can fall below, on hosts with a whole core."""
    from pipeline.planning.prediction import microbatch_sizes

    sizes = microbatch_sizes(point.batch, point.microbatches)
    layers = [
        [layer.seconds for layer in interpolate(profiles, size).layers]
        for size in sizes
    ]
    busy = np.sum(layers, axis=0)
    return float(max(busy.max(), busy.sum() / point.hosts))
