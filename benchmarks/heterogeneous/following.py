"""Networks on unequal hosts that change meanwhile: the part of each host."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from mpi4py import MPI

from benchmarks.common.results import quiet_barrier
from benchmarks.heterogeneous.training import Training, Way, samples

#: Seconds between two looks of a rank that waits for the others to end.
PAUSE = 0.005


class Job(NamedTuple):
    """The work of all ranks.

    Attributes:
        abilities: Abilities of the hosts.
        shape: n, m, l and s.
        ways: Ways by name, as the fields of `Way`.
        every: Iterations between two checks of DRPM.
        n_checks: Number of checks of each way.
        at: Number of checks after which the load changes.
        marker: Beginning of the names of files that announce the change, followed by
            the number of the way. A second file, with ``end`` behind that, announces
            the end.
    """

    abilities: list[float]
    shape: list[int]
    ways: dict[str, Any]
    every: int
    n_checks: int
    at: int
    marker: str | None


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Runs on each host; the answer of the first one counts."""
    return follow(MPI.COMM_WORLD, Job(**job))


def follow(comm: MPI.Comm, job: Job) -> dict[str, Any]:
    """Trains in each way, one after the other, while the load changes.

    Args:
        comm: Communicator of the ranks.
        job: Work of all ranks.

    Returns:
        The checks of DRPM, by name of the way.
    """
    x, t = samples(job.shape)
    # Loads the modules that the first steps load.
    first = Training(comm, Way("SRPM"), job.abilities, job.shape, job.every)
    first.warm_up(x, t)
    first.mlp.close()
    found = {}
    for i, (name, way) in enumerate(job.ways.items()):
        training = Training(comm, Way(**way), job.abilities, job.shape, job.every)
        for check in range(job.n_checks):
            if check == job.at and comm.rank == 0 and job.marker is not None:
                Path(f"{job.marker}{i}").touch()
            training.steps(x, t, job.every)
        quiet_barrier(comm, PAUSE)
        if comm.rank == 0 and job.marker is not None:
            Path(f"{job.marker}{i}end").touch()
        found[name] = [check._asdict() for check in training.remapper.history]
        training.mlp.close()
    return found
