"""Networks on unequal hosts, whose mappings take turns: the part of each host."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from benchmarks.common.perceptron import step_seconds
from benchmarks.common.results import quiet_barrier
from benchmarks.heterogeneous.training import Training, Way, samples

#: Seconds between two looks of a rank that waits for the others to start or end.
PAUSE = 0.005


class Job(NamedTuple):
    """The measurement that all ranks make.

    Attributes:
        abilities: Intended abilities of the hosts.
        shape: n, m, l and s.
        ways: Ways by name, as the fields of `Way`.
        rounds: Rounds of all ways.
        steps: Steps of each way in a round.
        every: Iterations between two checks of DRPM.
        checks: Checks of DRPM before the first round.
        tolerance: Largest relative error of a host's share in a round.
        tries: Number of tries of a round with a larger error.
    """

    abilities: list[float]
    shape: list[int]
    ways: dict[str, Any]
    rounds: int
    steps: int
    every: int = 20
    checks: int = 4
    tolerance: float = 0.1
    tries: int = 3


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Runs on each host; the answer of the first one counts."""
    changes = job.pop("changes", None)
    if changes is not None:
        return follow(MPI.COMM_WORLD, Job(**job), **changes)
    return measure(MPI.COMM_WORLD, Job(**job))


def measure(comm: MPI.Comm, job: Job) -> dict[str, Any]:
    """Measures all ways in turn, with each host alone among them.

    Args:
        comm: Communicator of the ranks, one on each host.
        job: Work of all ranks.

    Returns:
        Results by name. The seconds of a step of each host alone, by round, are in
        ``'alone'``. The seconds of a step in each round, by way, are in ``'ways'``. The
        largest relative error of a host's share, by round, is in ``'off'``. The checks
        of DRPM, by way, are in ``'checks'``.
    """
    x, t = samples(job.shape)
    alone = Training(MPI.COMM_SELF, Way("equal"), [1.0], job.shape, job.every)
    ways = {
        name: Training(comm, Way(**way), job.abilities, job.shape, job.every)
        for name, way in job.ways.items()
    }
    for training in (alone, *ways.values()):
        # Gets its memory, and learns how large messages are.
        n_steps = job.checks * job.every if training.remapper else 2
        for _ in range(n_steps):
            training.step(x, t)
    found: dict[str, Any] = {"alone": [], "off": []}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for i in range(job.rounds):
        for _ in range(job.tries):
            before = _alone_seconds(comm, alone, x, t, job.steps)
            turn = i % len(names)
            now = {
                name: step_seconds(
                    comm, lambda name=name: _steps(ways[name], x, t, job.steps), PAUSE
                )
                / job.steps
                for name in names[turn:] + names[:turn]
            }
            after = _alone_seconds(comm, alone, x, t, job.steps)
            each = [(a + b) / 2 for a, b in zip(before, after)]
            off = max(_off(each, job.abilities), _off(before, job.abilities))
            if off <= job.tolerance:
                break
        found["alone"].append(each)
        found["off"].append(off)
        for name in names:
            seconds[name].append(now[name])
    found["ways"] = seconds
    found["checks"] = {
        name: [check._asdict() for check in training.remapper.history]
        for name, training in ways.items()
        if training.remapper
    }
    return found


def _steps(training: Training, x: np.ndarray, t: np.ndarray, n: int) -> None:
    for _ in range(n):
        training.step(x, t)


def _alone_seconds(
    comm: MPI.Comm, alone: Training, x: np.ndarray, t: np.ndarray, n: int
) -> list[float]:
    """Returns the seconds of a step of each host alone, while all are busy."""
    quiet_barrier(comm, PAUSE)
    start = time.perf_counter()
    _steps(alone, x, t, n)
    own = (time.perf_counter() - start) / n
    quiet_barrier(comm, PAUSE)
    return comm.allgather(own)


def _off(seconds: list[float], abilities: list[float]) -> float:
    """Returns by which part of it the share of one host is off at most."""
    # A unit of ability takes so long on each; the median is that of the machine.
    units = [s * ability for s, ability in zip(seconds, abilities)]
    middle = statistics.median(units)
    return max(abs(middle / unit - 1) for unit in units)


def follow(
    comm: MPI.Comm, job: Job, n_checks: int, at: int, marker: str | None
) -> dict[str, Any]:
    """Trains in each way, one after the other, while the load changes.

    Args:
        comm: Communicator of the ranks.
        job: Work of all ranks; its rounds do not count.
        n_checks: Number of checks of each way.
        at: Number of checks after which the load changes.
        marker: Beginning of the names of files that announce the change, followed by
            the number of the way. A second file, with ``end`` behind that, announces
            the end.

    Returns:
        The checks of DRPM, by name of the way.
    """
    x, t = samples(job.shape)
    # Loads the modules that the first steps load.
    first = Training(comm, Way("SRPM"), job.abilities, job.shape, job.every)
    _steps(first, x, t, 2)
    first.mlp.close()
    found = {}
    for i, (name, way) in enumerate(job.ways.items()):
        training = Training(comm, Way(**way), job.abilities, job.shape, job.every)
        for check in range(n_checks):
            if check == at and comm.rank == 0 and marker is not None:
                Path(f"{marker}{i}").touch()
            _steps(training, x, t, job.every)
        quiet_barrier(comm, PAUSE)
        if comm.rank == 0 and marker is not None:
            Path(f"{marker}{i}end").touch()
        found[name] = [check._asdict() for check in training.remapper.history]
        training.mlp.close()
    return found
