"""A rank of a benchmark on an emulated host; see `benchmarks.common.hosts.run`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from mpi4py import MPI

from pipeline import abort_on_error


def main() -> None:
    """Calls ``work`` of a module with the job; the first rank writes the answer."""
    module, job, answer = sys.argv[1:]
    abort_on_error()
    work = importlib.import_module(module).work
    found = work(json.loads(Path(job).read_text()))
    if MPI.COMM_WORLD.rank == 0:
        Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
