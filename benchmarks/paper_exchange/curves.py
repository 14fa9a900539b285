"""The curves of runs, computed in several processes and kept in a file."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import json_lines
from benchmarks.data_parallel.simulated import QUANTILE_EVERY, TEST_EVERY, Replicas
from benchmarks.paper_exchange.experiments import EXPERIMENTS, Job, Scale


class Curve(NamedTuple):
    """The result of a run.

    Attributes:
        job: The run.
        first: Number of steps at the first accuracy.
        accuracies: Test accuracies in percent, `TEST_EVERY` steps apart.
        gain: Projection of the mean gradient on the exact one, the mean over the steps.
        common: Number of steps in float32.
        quantiles: Quantiles of Algorithm 1 by parameter, `QUANTILE_EVERY` steps apart.
    """

    job: Job
    first: int
    accuracies: list[float]
    gain: float
    common: int
    quantiles: dict[str, list[float]]

    @property
    def best(self) -> float:
        """The best accuracy, which the paper compares."""
        return max(self.accuracies)

    @property
    def steps(self) -> list[int]:
        """The number of steps at each accuracy."""
        return [self.first + i * TEST_EVERY for i in range(len(self.accuracies))]

    @property
    def quantile_steps(self) -> list[int]:
        """The number of steps at each quantile."""
        n = max(map(len, self.quantiles.values()), default=0)
        return [self.common + i * QUANTILE_EVERY for i in range(n)]

    def steps_to(self, accuracy: float) -> int | None:
        """Returns the steps up to an accuracy; ``None`` if it is not reached."""
        for steps, found in zip(self.steps, self.accuracies):
            if found >= accuracy:
                return steps
        return None


#: Curves of all seeds, by the names of the training and of the way.
Curves = dict[tuple[str, str], list[Curve]]


class Origin(NamedTuple):
    """The command of some curves, and where it ran.

    Attributes:
        command: The command.
        machine: Machine and versions.
        scale: Size of the experiments.
    """

    command: str
    machine: str
    scale: Scale


def train(job: Job, scale: Scale) -> Curve:
    """Trains, and returns the curve."""
    experiment = EXPERIMENTS[job.task, job.way]
    task = scale.task(experiment)
    replicas = Replicas(task, job.seed)
    replicas.train_common()
    run = replicas.train(experiment.way)
    first = (task.common // TEST_EVERY + 1) * TEST_EVERY
    accuracies = [round(each, 3) for each in run.accuracies]
    gain = round(statistics.mean(run.gains), 4)
    quantiles = {
        name: [float(f"{q:.4g}") for q in found]
        for name, found in run.quantiles.items()
    }
    return Curve(job, first, accuracies, gain, task.common, quantiles)


def train_all(
    todo: Sequence[Job], scale: Scale, file: Path, n_processes: int
) -> Iterable[Curve]:
    """Trains all, adds each curve to a file at once, and yields it.

    Args:
        todo: The runs.
        scale: Size of the experiments.
        file: File to which lines are added.
        n_processes: Number of runs at a time.
    """
    # A process that is not forked has no threads of the numerical libraries.
    with ProcessPoolExecutor(n_processes, get_context("spawn")) as pool:
        waiting = [pool.submit(train, job, scale) for job in todo]
        for future in as_completed(waiting):
            curve = future.result()
            json_lines.append(file, curve._asdict())
            yield curve


def begin(file: Path, origin: Origin) -> None:
    """Begins a file, without curves."""
    fields = {**origin._asdict(), "scale": origin.scale._asdict()}
    file.unlink(missing_ok=True)
    json_lines.append(file, fields)


def read(file: Path) -> tuple[Origin, Curves]:
    """Returns the origin and the curves of a file."""
    first, *others = json_lines.read(file)
    found: Curves = {}
    for fields in others:
        curve = Curve(**{**fields, "job": Job(*fields["job"])})
        found.setdefault((curve.job.task, curve.job.way), []).append(curve)
    for curves in found.values():
        curves.sort(key=lambda curve: curve.job.seed)
    return Origin(**{**first, "scale": Scale(**first["scale"])}), found
