"""Trainings to a criterion on unequal hosts, one after the other: each host's part."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from benchmarks.common.results import quiet_barrier
from benchmarks.heterogeneous.points import Point, from_json
from benchmarks.heterogeneous.rounds import PAUSE, alone_seconds, in_turn
from benchmarks.heterogeneous.training import Training, Way

#: Iterations of the slowest host alone, before all trainings and after them.
ALONE = 100
#: Iterations at which errors are kept.
CURVE = (1, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class Criterion(NamedTuple):
    """How long a network trains, and how.

    Attributes:
        threshold: Error at which the training ends: half of the sum over outputs of
            squared errors, mean over samples.
        most: Most iterations.
        lr: Learning rate, for the mean over samples.
        last: Iterations that count in a check of DRPM, the paper's L.
    """

    threshold: float
    most: int
    lr: float
    last: int


class Learned(NamedTuple):
    """The result of a training.

    Attributes:
        iterations: Number of iterations.
        error: Error in the last one.
        seconds: Seconds of all of them.
        right: Share of samples that have all outputs right.
        curve: Errors by iteration, those of `CURVE`.
        moved: Number of checks in which everything was mapped again, and in which lines
            moved; ``None`` without DRPM.
    """

    iterations: int
    error: float
    seconds: float
    right: float
    curve: list[tuple[int, float]]
    moved: tuple[int, int] | None


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Trains in all ways of each point, and returns a result for each.

    Args:
        job: The points are ``'points'``, as JSON, and the folder of their shares is
            ``'shares'``. The samples and targets are in the file ``'samples'``; the
            fields of `Criterion` are in ``'criterion'``.
    """
    with np.load(job["samples"]) as arrays:
        x, t = arrays["x"], arrays["t"]
    criterion = Criterion(*job["criterion"])
    points = map(from_json, job["points"])
    return [
        learn(own, point, criterion, x, t)
        for point, own in in_turn(MPI.COMM_WORLD, points, Path(job["shares"]))
    ]


def learn(
    comm: MPI.Comm, point: Point, criterion: Criterion, x: np.ndarray, t: np.ndarray
) -> dict[str, Any]:
    """Trains in all ways of a point.

    Args:
        comm: Communicator of the ranks, one on each host.
        point: The point.
        criterion: The end of each training.
        x: Samples.
        t: Targets.

    Returns:
        The seconds of an iteration of each host alone, as ``'alone'``, and a `Learned`
        for each way, as ``'ways'``.
    """
    alone = Training(MPI.COMM_SELF, Way("equal"), [1.0], point.shape, point.every)
    alone.warm_up(x, t)
    before = alone_seconds(comm, alone, point, x, t, ALONE)
    ways = {}
    for name, way in point.ways.items():
        training = Training(
            comm,
            Way(**way),
            point.told,
            point.shape,
            point.every,
            criterion.last,
            criterion.lr,
        )
        ways[name] = train(comm, training, criterion, x, t)
        training.mlp.close()
        if comm.rank == 0:
            print(f"{point}: {name}: {ways[name].seconds:.0f} s", flush=True)
    after = alone_seconds(comm, alone, point, x, t, ALONE)
    alone.mlp.close()
    return {"alone": [(a + b) / 2 for a, b in zip(before, after)], "ways": ways}


def train(
    comm: MPI.Comm,
    training: Training,
    criterion: Criterion,
    x: np.ndarray,
    t: np.ndarray,
) -> Learned:
    """Trains until the error is at the threshold or below.

    Args:
        comm: Communicator of the ranks.
        training: The training.
        criterion: The end of the training.
        x: Samples.
        t: Targets.
    """
    curve = []
    quiet_barrier(comm, PAUSE)
    start = time.perf_counter()
    for iteration in range(1, criterion.most + 1):
        error = training.step(x, t)
        if iteration in CURVE:
            curve.append((iteration, error))
        if error <= criterion.threshold:
            break
    seconds = time.perf_counter() - start
    right = ((training.mlp.predict(x) > 0.5) == (t > 0.5)).all(axis=1).mean()
    moved = None
    if training.remapper:
        actions = [check.action for check in training.remapper.history]
        moved = actions.count("whole"), actions.count("line")
    return Learned(iteration, error, seconds, float(right), curve, moved)
