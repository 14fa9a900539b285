"""Launchers of ranks, and their environment variables; without MPI."""

from __future__ import annotations

import os
import shutil
import sys
from typing import NamedTuple


class Launch(NamedTuple):
    """The facts that a launcher gives to a process that it starts.

    Attributes:
        rank (int): Number of the process among those that were started together.
        n_ranks (int): Number of these processes.
        variable (str): The environment variable that has ``n_ranks``.
    """

    rank: int
    n_ranks: int
    variable: str


# Variables of launchers that start ranks: Open MPI, MPICH and its descendants,
# MVAPICH2, IBM's jsrun, Flux, Slurm's srun.
_OF_RANKS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    ("FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
# Variables of a job, whose script may run without ranks.
_OF_JOBS = (("SLURM_NTASKS", "SLURM_PROCID"), ("SLURM_NPROCS", "SLURM_PROCID"))


def launch() -> Launch | None:
    """Returns the launch of this process, or ``None`` without a launcher of ranks."""
    return _first(_OF_RANKS)


def launch_or_job() -> Launch | None:
    """Returns the launch of this process, or else the job that it is part of."""
    return _first(_OF_RANKS) or _first(_OF_JOBS)


def is_one_of_several() -> bool:
    """Returns whether a launcher has started this process with others."""
    here = launch()
    return here is not None and here.n_ranks > 1 and not is_started_by_a_rank()


def is_started_by_a_rank() -> bool:
    """Returns whether a rank started this process, which inherits its environment."""
    # Processes of multiprocessing run the script under this name. In other processes
    # this is an alias of the main module.
    if getattr(sys.modules.get("__mp_main__"), "__name__", "") == "__mp_main__":
        return True
    # Only ranks inherit this descriptor, which connects them with MPICH's launcher.
    descriptor = os.environ.get("PMI_FD")
    try:
        return descriptor is not None and not os.fstat(int(descriptor))
    except (OSError, ValueError):
        return True


def _first(variables: tuple[tuple[str, str], ...]) -> Launch | None:
    for of_size, of_rank in variables:
        size = os.environ.get(of_size, "")
        if size.isdigit() and int(size) > 0:
            rank = os.environ.get(of_rank, "")
            return Launch(int(rank) if rank.isdigit() else 0, int(size), of_size)
    return None


def mpiexec() -> str:
    """Returns the launcher beside this Python, or else that of the system."""
    beside = shutil.which("mpiexec", path=os.path.dirname(sys.executable))
    return beside or "mpiexec"
