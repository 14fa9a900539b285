"""What runs on each rank of ``tests.support.mpiexec.on_ranks``."""

import importlib
import json
import sys
import warnings

from mpi4py import MPI

from pipeline import abort_on_error

if __name__ == "__main__":
    abort_on_error()
    # A test of what is done in the background would not be one.
    warnings.filterwarnings("error", "snapshots are written at once")
    module, name = sys.argv[1].split(":")
    function = getattr(importlib.import_module(module), name)
    function(MPI.COMM_WORLD, *json.loads(sys.argv[2]))
    print("rank done", flush=True)
