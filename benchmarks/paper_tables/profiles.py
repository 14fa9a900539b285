"""The profiles of the models: where they are, and one of several."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.paper_tables.points import Point
from divisible import LayerCost, Profile
from divisible.planning.profile import SECONDS

#: The sizes of microbatch at which layers are profiled, as parts of the minibatch.
PROFILED = (1, 5, 20, 80)


def profile_files(folder: Path, point: Point) -> dict[int, Path]:
    """Returns where the profiles of a point's model are, by their samples."""
    sizes = sorted({-(-point.batch // parts) for parts in PROFILED})
    name = f"{point.model}-{point.size}"
    return {n: folder / "profiles" / f"{name}-{n}.json" for n in sizes}


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
