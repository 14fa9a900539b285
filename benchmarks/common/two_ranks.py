"""The start of a benchmark that compares two ranks on two cores."""

from __future__ import annotations

import argparse
import os

from mpi4py import MPI

from pipeline import abort_on_error


def two_ranks(parser: argparse.ArgumentParser) -> MPI.Comm:
    """Returns the communicator of two ranks with a thread each.

    Args:
        parser: Ends the benchmark if it was started otherwise.
    """
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        parser.error(f"start 2 ranks, not {comm.size}: mpiexec -n 2 python ...")
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("set OMP_NUM_THREADS=1: one thread per rank")
    abort_on_error()
    return comm
