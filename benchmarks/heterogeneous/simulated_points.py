"""Points of Fig. 11 with simulated seconds, where no hosts can be emulated."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.common import json_lines
from benchmarks.common.results import processor
from benchmarks.heterogeneous.points import Point, to_json
from benchmarks.heterogeneous.simulated import PRINTED, Checked, Settings, run
from benchmarks.heterogeneous.step_model import step_seconds
from benchmarks.heterogeneous.training import Training, Way, partition_of, samples
from heterogeneous import RectangularPartition

#: Steps from which the seconds of a core are found; relative noise of DRPM's times.
STEPS, NOISE = 3, 0.05


def simulate(file: Path, point: Point) -> None:
    """Simulates a point, and appends it to a file.

    Only the seconds of a step on one core of this machine are measured.

    Args:
        file: File to append to.
        point: The point.
    """
    line = {
        "point": to_json(point),
        "machine": f"{processor()}; all seconds simulated from those of a core",
        "load": 0.0,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        **simulated(point, core_seconds(point)),
    }
    json_lines.append(file, line)


def core_seconds(point: Point) -> float:
    """Returns the seconds of a core that a step with all the work takes."""
    x, t = samples(point.shape)
    alone = Training(MPI.COMM_SELF, Way("equal"), [1.0], point.shape, point.every)
    alone.warm_up(x, t)
    start = time.process_time()
    alone.steps(x, t, STEPS)
    seconds = (time.process_time() - start) / STEPS
    alone.mlp.close()
    return seconds


def simulated(point: Point, seconds: float) -> dict[str, Any]:
    """Returns what `benchmarks.heterogeneous.rounds.measure` would measure.

    Args:
        point: The point.
        seconds: Seconds of a step with all the work on one core.
    """
    _, m, _, s = point.shape
    unit = seconds / (m * s) * sum(point.true) / point.cpu
    alone = [seconds / share for share in point.shares]
    ideal = seconds / point.cpu
    ways, learning, checks = {}, {}, {}
    for name, words in point.ways.items():
        way = Way(**words)
        partition = partition_of(way, point.told, point.shape)
        if way.remaps:
            found = _checks(point, way)
            partition = found[-1].outcome.partition
            n = point.checks * point.every
            learning[name] = sum(check.seconds for check in found) * ideal / n
            checks[name] = [_as_check(each, ideal) for each in found]
        ways[name] = _seconds(partition, point, unit)
    return {
        "alone": [alone],
        "off": [0.0],
        "ways": {name: [each] for name, each in ways.items()},
        "learning": learning,
        "checks": checks,
        "simulated": ways,
    }


def _seconds(partition: RectangularPartition, point: Point, unit: float) -> float:
    return step_seconds(partition, point.true, unit, point.bandwidth)


def _checks(point: Point, way: Way) -> list[Checked]:
    """Returns the checks of a way of DRPM."""
    settings = (PRINTED if way.is_printed else Settings())._replace(
        every=point.every, noise=NOISE
    )
    true = np.array(point.true)
    return run(
        lambda i: true,
        None if way.remaps == "unknown" else point.told,
        point.checks,
        settings,
        np.random.RandomState(0),
        shape=point.shape,
    )


def _as_check(check: Checked, ideal: float) -> dict[str, Any]:
    """Returns the fields of a check that findings need."""
    return {
        "seconds": check.seconds * ideal,
        "action": check.action,
        "ratio": check.outcome.ratio,
        "abilities": check.outcome.abilities,
    }
