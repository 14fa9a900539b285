"""Messages that are put into the receiver's memory, against those of both sides.

    python -m benchmarks.one_sided

An array goes to the other rank and back. Half of the time is the time of a message. The
ways take turns:

=============  =========================================================================
one-sided      `Pipeline(transport='rma')`: a put into memory that both ranks map
two-sided      `Pipeline(transport='mpi')`: receives that are posted before
MPI            `Send` and `Recv` of mpi4py, blocking, into an array that exists already
MPI_Put        `Put` into a window of MPI, `Flush`, and an empty message as the note;
               only on one host, as MPICH fails to put some MiB over TCP
ChainerMN      `send` and `recv` of ChainerMN
=============  =========================================================================

The first table is of two ranks on one host. The others are of two emulated hosts, over
links of some rates; where hosts cannot be emulated they are left out. Between hosts,
messages of ``'rma'`` are two-sided.

The last column is the time of MPI's blocking calls over that of one-sided messages:
0.95 or more from 256 KiB on is the aim on one host.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cluster import missing
from benchmarks.cluster.network import bandwidth
from benchmarks.common import quick
from benchmarks.common.hosts import Hosts, add_hosts_arguments, run
from benchmarks.common.results import ROOT, Result, command, machine, ratios

#: The module that runs on the ranks.
ON_RANKS = "benchmarks.one_sided.on_ranks"
KIB = 2**10
SIZES = [KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB, 65536 * KIB]
#: Options of a quick run.
QUICK = {"sizes": [KIB, 256 * KIB], "rounds": 2, "rates": ["1gbit"]}
WAYS = ("one-sided", "two-sided", "MPI", "MPI_Put", "ChainerMN")
#: Rounds between hosts, where the largest message takes seconds.
BETWEEN_HOSTS = 3
#: Sizes from which one-sided messages should reach this part of MPI's speed.
AIM, AIM_FROM = 0.95, 256 * KIB


def main() -> None:
    """Measures on one host and on emulated hosts, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", default=SIZES, help="of messages, in bytes")
    add("--rates", nargs="*", default=["1gbit", "100mbit"], help="of the links")
    add("--rounds", type=int, default=7)
    add("--timeout", type=float, default=1800, help="seconds of a table")
    add("--output", type=Path)
    arguments = quick.parse(parser, "one_sided", QUICK)
    sizes, rounds, rates = arguments.sizes, arguments.rounds, arguments.rates
    os.environ["OMP_NUM_THREADS"] = "1"
    result = Result("one_sided", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{rounds} rounds, at most {BETWEEN_HOSTS} between hosts; medians in "
        "microseconds; ratio with (min..max)",
    )
    job = {"sizes": sizes, "rounds": rounds, "puts": True, "bytes": 192 * 2**20}
    write_table(result, "one host", on_one_host(job, arguments.timeout), True)
    job.update(puts=False, rounds=min(rounds, BETWEEN_HOSTS))
    reason = missing() if rates else None
    if reason:
        result.write("", f"no hosts can be emulated here: {reason}")
    for rate in [] if reason else rates:
        hosts = Hosts(2, arguments.cpu / 2, rate)
        job["bytes"] = bandwidth(rate) / 2
        found = run(hosts, ON_RANKS, job, arguments.timeout)
        write_table(result, f"two hosts, links of {rate}", found, False)
    result.save()


def on_one_host(job: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Returns the seconds on two ranks of this host.

    Args:
        job: Sizes and rounds; see :func:`benchmarks.one_sided.on_ranks.work`.
        timeout: Seconds that the run may take.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    with tempfile.TemporaryDirectory() as folder:
        task, answer = Path(folder, "job.json"), Path(folder, "answer.json")
        task.write_text(json.dumps(job))
        words = [launcher, "-n", "2", sys.executable, "-m", "benchmarks.common.on_host"]
        subprocess.run(
            [*words, ON_RANKS, str(task), str(answer)],
            cwd=ROOT,
            timeout=timeout,
            check=True,
        )
        return json.loads(answer.read_text())


def write_table(
    result: Result, title: str, found: dict[str, Any], has_aim: bool
) -> None:
    """Writes the table of one place.

    Args:
        result: The result.
        title: The place.
        found: For each size in bytes, and each way, the seconds of a message in every
            round.
        has_aim: Whether to tell which sizes miss the aim.
    """
    ways = [way for way in WAYS if all(way in each for each in found.values())]
    heads = " ".join(f"{way:>10}" for way in ways)
    result.write("", title, f"{'':<10} {heads}  MPI/one-sided")
    missed = []
    for size, seconds in found.items():
        medians = {way: statistics.median(seconds[way]) for way in ways}
        cells = " ".join(f"{1e6 * medians[way]:10.1f}" for way in ways)
        ratio = ratios(seconds["MPI"], seconds["one-sided"])
        result.write(f"{int(size) // KIB:>6} KiB {cells}  {ratio}")
        if int(size) >= AIM_FROM and medians["MPI"] < AIM * medians["one-sided"]:
            missed.append(f"{int(size) // KIB} KiB")
    if has_aim:
        words = f"MISSED at {', '.join(missed)}" if missed else "met"
        result.write(f"at least {AIM} of MPI from {AIM_FROM // KIB} KiB: {words}")


if __name__ == "__main__":
    main()
