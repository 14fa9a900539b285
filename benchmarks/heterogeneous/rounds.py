"""Mappings on unequal hosts that take turns: the part of each host."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.common import json_lines
from benchmarks.common.perceptron import step_seconds
from benchmarks.common.results import machine, quiet_barrier
from benchmarks.heterogeneous import step_model
from benchmarks.heterogeneous.points import Point, from_json, to_json
from benchmarks.heterogeneous.shares import ask
from benchmarks.heterogeneous.training import Training, Way, samples

#: Seconds between two looks of a rank that waits for the others to start or end, and of
#: one that waits for the next point.
PAUSE, LONG_PAUSE = 0.005, 0.05
#: Packages whose versions matter.
PACKAGES = ("numpy", "chainer", "mpi4py", "mpich")
#: Largest relative error of a host's share in a round; tries of a round.
TOLERANCE, TRIES = 0.1, 2


def work(job: dict[str, Any]) -> None:
    """Runs on each host, with the arguments of `measure_points`."""
    measure_points(MPI.COMM_WORLD, **job)


def measure_points(
    comm: MPI.Comm, points: list[dict[str, Any]], file: str, shares: str
) -> None:
    """Measures points in turn, each on the first ranks, and appends them to a file.

    Args:
        comm: Communicator of the ranks, one on each host.
        points: Points, as JSON.
        file: File to append to.
        shares: Folder of `benchmarks.heterogeneous.shares`.
    """
    for point, own in in_turn(comm, map(from_json, points), Path(shares)):
        load = os.getloadavg()[0]
        found = measure(own, point)
        if comm.rank == 0:
            line = {
                "point": to_json(point),
                # The load is a value of its own.
                "machine": machine(*PACKAGES).rpartition(", load")[0],
                "load": load,
                "date": time.strftime("%Y-%m-%d %H:%M"),
                **found,
            }
            json_lines.append(Path(file), line)


def in_turn(
    comm: MPI.Comm, points: Iterable[Point], shares: Path
) -> Iterator[tuple[Point, MPI.Comm]]:
    """Yields each point on the ranks of its hosts, when these have their shares.

    Args:
        comm: Communicator of the ranks, one on each host.
        points: Points, whose hosts are the first ones.
        shares: Folder of `benchmarks.heterogeneous.shares`.

    Yields:
        The point, and a communicator of its hosts.
    """
    for number, point in enumerate(points):
        if comm.rank == 0:
            ask(shares, number, point.shares)
        quiet_barrier(comm, LONG_PAUSE)
        own = comm.Split(0 if comm.rank < point.hosts else MPI.UNDEFINED)
        if own != MPI.COMM_NULL:
            yield point, own
            own.Free()
        quiet_barrier(comm, LONG_PAUSE)


def measure(comm: MPI.Comm, point: Point) -> dict[str, Any]:
    """Measures all ways of a point in turn, with each host alone among them.

    Args:
        comm: Communicator of the ranks, one on each host.
        point: The point.

    Returns:
        Results by name. The seconds of a step of each host alone, by round, are in
        ``'alone'``. The seconds of a step in each round, by way, are in ``'ways'``. The
        largest relative error of a host's share, by round, is in ``'off'``. The seconds
        of an iteration of DRPM before the rounds, remapping included, are in
        ``'learning'``; its checks, by way, in ``'checks'``. The seconds of a step that
        are simulated for the partitions in the end are in ``'simulated'``.
    """
    start = time.perf_counter()
    shape = point.shape
    x, t = samples(shape)
    alone = Training(MPI.COMM_SELF, Way("equal"), [1.0], shape, point.every)
    ways = {
        name: Training(comm, Way(**way), point.told, shape, point.every)
        for name, way in point.ways.items()
    }
    for training in (alone, *ways.values()):
        training.warm_up(x, t)
    names, learning = list(ways), {}
    for name, training in ways.items():
        if training.remapper:
            n = point.checks * point.every
            learning[name] = _step_seconds(comm, training, x, t, n)
    found: dict[str, Any] = {"alone": [], "off": []}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    after = alone_seconds(comm, alone, point, x, t)
    for i in range(point.rounds):
        turn = i % len(names)
        for _ in range(TRIES):
            before = after
            now = {
                name: _step_seconds(comm, ways[name], x, t, point.steps)
                for name in names[turn:] + names[:turn]
            }
            after = alone_seconds(comm, alone, point, x, t)
            each = [(a + b) / 2 for a, b in zip(before, after)]
            off = max(_off(before, point.true), _off(after, point.true))
            if off <= TOLERANCE:
                break
        found["alone"].append(each)
        found["off"].append(off)
        for name in names:
            seconds[name].append(now[name])
    checks = {
        name: [check._asdict() for check in training.remapper.history]
        for name, training in ways.items()
        if training.remapper
    }
    unit = step_model.unit_seconds(found["alone"], point.true, shape)
    simulated = {
        name: step_model.step_seconds(
            training.mlp.partition, point.true, unit, point.bandwidth
        )
        for name, training in ways.items()
    }
    for training in (alone, *ways.values()):
        training.mlp.close()
    if comm.rank == 0:
        minutes = (time.perf_counter() - start) / 60
        print(f"{point}: {minutes:.1f} minutes", flush=True)
    return {
        **found,
        "ways": seconds,
        "learning": learning,
        "checks": checks,
        "simulated": simulated,
    }


def _step_seconds(
    comm: MPI.Comm, training: Training, x: np.ndarray, t: np.ndarray, n: int
) -> float:
    """Returns the seconds of a step, of some that follow each other."""
    return step_seconds(comm, lambda: training.steps(x, t, n), PAUSE) / n


def alone_seconds(
    comm: MPI.Comm,
    alone: Training,
    point: Point,
    x: np.ndarray,
    t: np.ndarray,
    n: int = 1,
) -> list[float]:
    """Returns the seconds of a step of each host alone, while all are busy.

    Args:
        comm: Communicator of the hosts.
        alone: Training on this host alone.
        point: Point that is measured.
        x: Samples.
        t: Targets.
        n: Steps of the slowest host; the others work for about as long.
    """
    n = round(n * point.true[comm.rank] / min(point.true))
    quiet_barrier(comm, PAUSE)
    start = time.perf_counter()
    alone.steps(x, t, n)
    own = (time.perf_counter() - start) / n
    quiet_barrier(comm, PAUSE)
    return comm.allgather(own)


def _off(seconds: list[float], abilities: list[float]) -> float:
    """Returns by which part of it the share of one host is off at most."""
    # A unit of ability takes so long on each; the median is that of the machine.
    units = [s * ability for s, ability in zip(seconds, abilities)]
    middle = statistics.median(units)
    return max(abs(middle / unit - 1) for unit in units)
