"""Remapping while hosts change, and where their believed abilities are wrong.

    python -m benchmarks.heterogeneous.changes

The part ``wrong`` is condition B, in which the ability of the last host is given as
twice the true one. Ten checks with DRPM are compared with the same mapping kept. The
part ``unknown`` compares the same true abilities, given and not, from the third check
on. In the part ``halved`` the share of a host is halved while it runs, as in Fig. 12 of
Ozawa et al. In the part ``job`` another program runs on the host instead, as in the
paper. Each table has the seconds of the iterations between two checks, and the moves of
each check.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.common import quick
from benchmarks.common.hosts import (
    Hosts,
    add_hosts_arguments,
    keep_freed_memory,
    prepare,
    run,
)
from benchmarks.common.results import Result, command, machine
from benchmarks.data_parallel.exchange import Goals
from benchmarks.heterogeneous.mappings import CONDITIONS
from benchmarks.heterogeneous.points import enlarged, shares_of

PARTS = ("wrong", "unknown", "halved", "job")
#: Checks of each way, of which the load changes after some.
CHECKS, AT = 10, 5
#: The check from which on all should have settled.
SETTLED = 3
#: Throughput of DRPM over that of the mapping that is kept, where an ability is wrong;
#: and without abilities over with them.
OVER_KEPT, UNKNOWN = 1.1, 0.95
DEADLINE = 1800
#: Options of a quick run: sixteen times less work between two checks.
QUICK = {"every": 5, "factor": 4}
#: Seconds between two looks for a file, and that a way may take.
PAUSE, PATIENCE = 0.05, 900.0
#: A program that takes all the time that it gets.
BUSY = "while True: pass"

Change = Callable[[Cluster, int, float], contextlib.AbstractContextManager[Any]]


def ways_of(part: str, abilities: list[float]) -> dict[str, dict[str, Any]]:
    """Returns the ways of a part by name.

    Args:
        part: One of `PARTS`.
        abilities: Abilities of the hosts.
    """
    given = {"mapping": "SRPM", "remaps": "given"}
    kept = {"mapping": "SRPM", "remaps": "kept"}
    if part == "wrong":
        believed = [*abilities[:-1], 2 * abilities[-1]]
        return {
            "SRPM": {**kept, "abilities": believed},
            "DRPM": {**given, "abilities": believed},
        }
    unknown = {"mapping": "equal", "remaps": "unknown"}
    if part == "unknown":
        return {"DRPM, given": given, "DRPM, unknown": unknown}
    return {"SRPM": kept, "DRPM, given": given, "DRPM, unknown": unknown}


@contextlib.contextmanager
def halved(cluster: Cluster, host: int, share: float) -> Iterator[None]:
    """Halves the share of a host for a while."""
    cluster.set(host, cpus=share / 2)
    try:
        yield
    finally:
        cluster.set(host, cpus=share)


@contextlib.contextmanager
def job(cluster: Cluster, host: int, share: float) -> Iterator[None]:
    """Runs another program on a host for a while."""
    argv, env = cluster.launch(1, [sys.executable, "-c", BUSY], [host])
    # Without this, mpiexec would report its end at length.
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen(argv, env=env, **quiet)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


CHANGES: dict[str, Change] = {"halved": halved, "job": job}


def meanwhile(
    change: Change, marker: str, n_ways: int, host: int, share: float
) -> Callable[[Cluster], None]:
    """Returns a function that changes a host in the second part of each way.

    Args:
        change: Change of the host.
        marker: Marker of `benchmarks.heterogeneous.following.Job`.
        n_ways: Number of ways.
        host: Number of the host.
        share: Share of the host.
    """

    def watch(cluster: Cluster) -> None:
        for i in range(n_ways):
            if not _appears(f"{marker}{i}"):
                return
            with change(cluster, host, share):
                _appears(f"{marker}{i}end")

    return watch


def _appears(path: str) -> bool:
    """Waits for a file, and returns whether it came while its folder was there."""
    file, deadline = Path(path), time.monotonic() + PATIENCE
    while not file.exists():
        if not file.parent.exists() or time.monotonic() > deadline:
            return False
        time.sleep(PAUSE)
    return True


def write_table(result: Result, title: str, found: dict[str, Any]) -> None:
    """Writes the checks of each way beside each other."""
    result.write("", title, f"{'check':>5}" + "".join(f"  {n:>22}" for n in found))
    for i, checks in enumerate(zip(*found.values()), start=1):
        line = f"{i:5}"
        for check in checks:
            action = check["action"] or "-"
            line += f"  {check['seconds']:8.2f} s {check['ratio']:4.2f} {action:>6}"
        result.write(line)
    line = f"{'all':>5}"
    for checks in found.values():
        line += f"  {sum(check['seconds'] for check in checks):8.2f} s{'':12}"
    result.write(line)


def add_goals(goals: Goals, part: str, found: dict[str, Any]) -> None:
    """Adds the goals of a part."""
    seconds = {n: [c["seconds"] for c in checks] for n, checks in found.items()}
    if part == "wrong":
        ratio = sum(seconds["SRPM"]) / sum(seconds["DRPM"])
        goals.add("DRPM over SRPM, an ability wrong by 2", ratio, OVER_KEPT)
    if part == "unknown":
        given, unknown = (
            sum(seconds[f"DRPM, {word}"][SETTLED:]) for word in ("given", "unknown")
        )
        name = "DRPM without abilities over with, from the third check on"
        goals.add(name, given / unknown, UNKNOWN)


def main() -> None:
    """Measures everything and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add("--hosts", type=int, default=4)
    add("--rate", default="1gbit", help="of the links")
    add("--every", type=int, default=20, help="iterations between two checks")
    add("--factor", type=int, default=8, help="times hidden units and samples")
    add("--output", type=Path, help="of the result")
    name = "heterogeneous_changes"
    arguments = quick.parse(parser, name, QUICK)
    prepare()
    keep_freed_memory()

    result = Result(name, arguments.output)
    goals, shape = Goals(), enlarged(arguments.factor)
    abilities = list(CONDITIONS["B"][: arguments.hosts])
    shares = shares_of(abilities, arguments.cpu)
    result.write(
        command(),
        machine("numpy", "numba", "chainer", "mpi4py", "mpich"),
        f"n, m, l, s: {shape}; condition B, {arguments.hosts} hosts with shares of"
        f" {arguments.cpu:g} cores, links of {arguments.rate}; seconds of"
        f" {arguments.every} iterations, ratio of times, what was moved",
    )
    for part in arguments.parts:
        ways = ways_of(part, abilities)
        host = arguments.hosts - 1
        result.progress(f"{part}: {CHECKS} checks of each of {len(ways)} ways begin")
        with tempfile.TemporaryDirectory() as folder:
            marker, change = str(Path(folder, "way")), CHANGES.get(part)
            found = run(
                Hosts(arguments.hosts, shares, arguments.rate),
                "benchmarks.heterogeneous.following",
                {
                    "abilities": abilities,
                    "shape": shape,
                    "ways": ways,
                    "every": arguments.every,
                    "n_checks": CHECKS,
                    "at": AT,
                    "marker": marker if change else None,
                },
                DEADLINE,
                change and meanwhile(change, marker, len(ways), host, shares[host]),
            )
        after = f", host {host} from check {AT + 1} on" if change else ""
        write_table(result, f"{part}{after}", found)
        add_goals(goals, part, found)
    result.write("", *goals.lines)
    result.save()


if __name__ == "__main__":
    main()
