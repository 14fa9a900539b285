"""The verdicts of ``divisible smoke`` on emulated hosts, four of which have a fault.

    python -m benchmarks.smoked_hosts

=====  ==============================================================
host   fault
=====  ==============================================================
0      none
1      a third of the CPU of the others
2      a link of 100 Mbit/s among links of 1 Gbit/s
3      200 MB of free memory
4      ``OMP_NUM_THREADS=8``
=====  ==============================================================

A host is judged rightly if its verdict names the fault, and host 0 if it passes.
"""

from __future__ import annotations

import argparse
import os
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.common.hosts import Hosts, prepare, run
from benchmarks.common.results import Result, command, machine

#: Share of a core of host 0, the rate of its link, and its memory.
SHARE, RATE, MEMORY = 0.36, "1gbit", "1500M"
SLOW_RATE, FREE, THREADS = "100mbit", 200e6, 8
#: For each host its fault in words, and a word of the verdict on it.
FAULTS = {
    0: ("none", ""),
    1: ("a third of the CPU", "core"),
    2: ("a link of 100 Mbit/s", "bit/s"),
    3: ("200 MB of free memory", "memory"),
    4: (f"OMP_NUM_THREADS={THREADS}", "OMP_NUM_THREADS"),
}
_N = len(FAULTS)
# Seconds that the measurements may take.
DEADLINE = 300


def work(job: dict[str, Any]) -> dict[str, list[tuple[bool, list[str]]]]:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    import numpy as np
    import threadpoolctl
    from mpi4py import MPI

    from chainer_kernels.memory_limits import free_bytes
    from pipeline.smoke.judging import judge
    from pipeline.smoke.measuring import compute
    from pipeline.smoke.on_ranks import measure

    comm = MPI.COMM_WORLD
    ballast = None
    if comm.rank == 3:
        # Loads what the measurements need, and takes the rest.
        compute()
        ballast = np.ones(int(free_bytes() - FREE), np.uint8)
    if comm.rank == 4:
        # Libraries that are loaded already do not read the variable again.
        os.environ["OMP_NUM_THREADS"] = str(THREADS)
        threadpoolctl.threadpool_limits(THREADS)
    found = measure(comm, DEADLINE)
    del ballast
    verdicts = judge(found.ranks, found.links)
    return {"verdicts": [(verdict.passed, verdict.faults) for verdict in verdicts]}


def slow_down(hosts: Cluster) -> None:
    """Slows the link of one host down."""
    hosts.set(2, rate=SLOW_RATE)


def main() -> None:
    """Measures the hosts and writes the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    prepare()

    result = Result("smoked_hosts", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{_N} hosts, each with {SHARE:g} of a core, a link of {RATE} and {MEMORY} of"
        f" memory, and four faults",
        "",
    )
    shares = [SHARE / 3 if host == 1 else SHARE for host in FAULTS]
    hosts = Hosts(_N, shares, RATE, MEMORY)
    found = run(hosts, __spec__.name, {}, DEADLINE, slow_down)
    n_right = 0
    verdicts = zip(FAULTS.items(), found["verdicts"])
    for (host, (fault, word)), (passed, faults) in verdicts:
        is_right = passed if not word else word in " ".join(faults)
        n_right += is_right
        result.write(f"host {host}: {fault}: {'PASS' if passed else 'FAIL'}")
        for each in faults:
            result.write(textwrap.indent(textwrap.fill(each, 84), "    "))
    result.write("", f"{n_right} of {_N} judged rightly")
    result.save()


if __name__ == "__main__":
    main()
