"""The profiles of the models: where they are, and how they come there."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.hosts import run
from benchmarks.paper_tables.arithmetic import UNSTATED
from benchmarks.paper_tables.durations import PROFILED, PROFILED_QUICKLY
from benchmarks.paper_tables.points import Point, to_json
from divisible import LayerCost, Profile
from divisible.planning.layer_cost import SECONDS

#: The module of what hosts do, and seconds that they may take.
WORK, DEADLINE = "benchmarks.paper_tables.work", 4 * 3600.0


def profiles_of(folder: Path, point: Point, quick: bool = False) -> list[Profile]:
    """Returns profiles of a model, which are measured on one host if they are missing.

    A host has a whole core then: what it takes on a share of one is a prediction.

    Args:
        folder: Folder of the samples.
        point: Point with the model, and with the arithmetic.
        quick: Whether to profile fewer sizes, each once.
    """
    files = profile_files(folder, point, quick)
    for samples, file in files.items():
        if not file.exists():
            print(f"{time.strftime('%H:%M')} profile {file.name}", flush=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            job = {
                "task": "profile",
                "point": to_json(point),
                "samples": samples,
                "file": str(file.resolve()),
                "quick": quick,
            }
            hosts = Point(point.model, point.size, samples, 1, 1).on(1.0)
            run(hosts, WORK, job, DEADLINE)
    return [Profile.load(file) for file in files.values()]


def profile_files(folder: Path, point: Point, quick: bool = False) -> dict[int, Path]:
    """Returns where the profiles of a point's model are, by their samples."""
    parts = PROFILED_QUICKLY if quick else PROFILED
    sizes = sorted({-(-point.batch // part) for part in parts})
    folder = folder / "profiles"
    if point.kernels != UNSTATED:
        folder = folder / f"kernels-{point.kernels}-{point.provider}"
    name = f"{point.model}-{point.size}"
    return {n: folder / f"{name}-{n}.json" for n in sizes}


def medians(profiles: Sequence[Profile]) -> Profile:
    """Returns a profile with the median times of several at one size of microbatch."""

    def median(costs: Sequence[LayerCost]) -> LayerCost:
        times = {
            name: statistics.median(getattr(cost, name) for cost in costs)
            for name in SECONDS
        }
        return dataclasses.replace(costs[0], **times)

    layers = [median(costs) for costs in zip(*(each.layers for each in profiles))]
    loss = median([each.loss for each in profiles])
    return dataclasses.replace(profiles[0], layers=layers, loss=loss)
