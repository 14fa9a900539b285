"""Replicas of a pipeline on 4 hosts: the hidden part of the exchange, and grids.

    python -m benchmarks.data_parallel.grid

``overlap``: 2 replicas of 2 stages with links of 1 Gbit/s. Gradients are exchanged
during the step, after it, or not at all, all in turn, so that one run shows how much of
the exchange is hidden by computing. Messages move between the functions of layers, so
the model has many.

``plans``: 1 replica of 4 stages, 2 of 2 and 4 of 1 with one model and one minibatch.
The search `best_plan` knows the layers' profiles from a whole core, the speed of the
hosts when all are busy, and the link. Its order of the three should be the measured
one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.hosts import (
    Hosts,
    add_hosts_arguments,
    keep_freed_memory,
    prepare,
    run,
)
from benchmarks.common.results import Result, command, machine, ratios
from benchmarks.data_parallel.exchange import Goals

N_HOSTS = 4
#: The names of `benchmarks.data_parallel.grid_ranks`, which this process cannot import,
#: because that would start MPI.
ALONE, AFTER, DURING = "alone", "after", "during"
#: Schedules of the part overlap, and dtypes on the wire of the part plans.
SCHEDULES, EXCHANGE_DTYPES = ("1f1b", "zb_h1"), ("fp32", "int8")
OVERLAP_MICROBATCHES = 4
#: Parts of a minibatch at which layers are profiled.
PROFILED = (16, 4, 1)
NOT_SLOWER = 1.0
#: Seconds that the run on some hosts may take.
DEADLINE = 280


def hidden(seconds: dict[str, Sequence[float]]) -> float:
    """Returns the share of an exchange that is hidden by computing.

    ::

        alone    |======= step =======|
        after    |======= step =======|=== exchange ===|
        during   |======= step ========== ... |
                                              '-hidden-'

    Args:
        seconds: Seconds of each step, by `ALONE`, `AFTER` and `DURING`.
    """
    alone, after, during = (
        statistics.median(seconds[w]) for w in (ALONE, AFTER, DURING)
    )
    return (after - during) / (after - alone)


def write_overlap(result: Result, found: dict[str, Any], goals: Goals) -> None:
    """Writes the table of the part overlap.

    Args:
        result: Where to.
        found: By schedule what `benchmarks.data_parallel.grid_ranks.Overlapped` has.
        goals: Gets what is wanted.
    """
    result.write(
        f"{'':8} {'alone ms':>9} {'after ms':>9} {'during ms':>9} "
        f" {'after / during':20} {'hidden':>7}  MB sent"
    )
    for schedule, (seconds, report, sent) in found.items():
        times = " ".join(
            f"{1e3 * statistics.median(seconds[way]):9.1f}"
            for way in (ALONE, AFTER, DURING)
        )
        ratio = ratios(seconds[AFTER], seconds[DURING]).strip()
        result.write(
            f"{schedule:8} {times}  {ratio:20} {hidden(seconds):7.0%} "
            f" {sent / 1e6:7.1f}"
        )
        result.write(f"{'':8} {report}")
        what = f"{schedule}: after the step over during it"
        goals.add_ratio(what, seconds[AFTER], seconds[DURING], NOT_SLOWER)


def write_plans(result: Result, found: dict[str, Any], goals: Goals) -> None:
    """Writes the table of the part plans.

    Args:
        result: Where to.
        found: By wire dtype as of `benchmarks.data_parallel.grid_ranks.plans`.
        goals: Gets what is wanted.
    """
    result.write(
        f"link {found['bandwidth'] / 1e6:.0f} MB/s, {1e6 * found['latency']:.0f} us;"
        f" busy hosts take {found['slower']:.1f} times as long as a whole core",
        f"{'':12} {'predicted ms':>12} {'measured ms':>12}",
    )
    orders: dict[str, tuple[list, list]] = {}
    for name, headline, predicted, seconds in found["plans"]:
        measured = statistics.median(seconds)
        result.write(
            f"{name:12} {1e3 * predicted:12.1f} {1e3 * measured:12.1f}  {headline}"
        )
        shape, exchange_dtype = name.split(", ")
        of_dtype = orders.setdefault(exchange_dtype, ([], []))
        for order, value in zip(of_dtype, (predicted, measured)):
            order.append((value, shape))
    for exchange_dtype, of_dtype in orders.items():
        first, second = ([shape for _, shape in sorted(each)] for each in of_dtype)
        what = (
            f"{exchange_dtype}: the order measured, {' < '.join(second)}, is predicted"
        )
        goals.add(what, float(first == second), 1, digits=0)


def overlap(result: Result, arguments: argparse.Namespace, goals: Goals) -> None:
    """Measures exchanges during a step and after it."""
    hosts = Hosts(N_HOSTS, arguments.cpu / N_HOSTS, arguments.rate)
    result.write(
        "",
        f"2 replicas of 2 stages: {arguments.layers} layers of {arguments.width},"
        f" {arguments.samples} samples, {OVERLAP_MICROBATCHES} microbatches of each"
        f" replica; {arguments.rounds} steps of each",
    )
    job = {
        **_model(arguments),
        "task": "overlap",
        "schedules": SCHEDULES,
        "batch": arguments.samples,
        "microbatches": OVERLAP_MICROBATCHES,
    }
    write_overlap(result, run(hosts, _RANKS, job, DEADLINE), goals)


def plans(result: Result, arguments: argparse.Namespace, goals: Goals) -> None:
    """Plans and measures all grids of the hosts."""
    hosts = Hosts(N_HOSTS, arguments.cpu / N_HOSTS, arguments.rate)
    result.write(
        "",
        f"replicas x stages: {arguments.layers} layers of {arguments.width},"
        f" {arguments.batch} samples; {arguments.rounds} steps of each",
    )
    with tempfile.TemporaryDirectory() as folder:
        sizes = [-(-arguments.batch // part) for part in PROFILED]
        files = [str(Path(folder, f"{n}.json")) for n in sizes]
        job = {
            "exchange_dtypes": EXCHANGE_DTYPES,
            "batch": arguments.batch,
            "sizes": sizes,
            "files": files,
            "busy": arguments.busy,
            **_model(arguments),
        }
        run(Hosts(1, 1.0), _RANKS, {"task": "profile", **job}, DEADLINE)
        found = run(hosts, _RANKS, {"task": "plans", **job}, DEADLINE)
    write_plans(result, found, goals)


_RANKS = "benchmarks.data_parallel.grid_ranks"


def _model(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("width", "layers", "rounds", "microbatches")
    return {name: getattr(arguments, name) for name in names}


def main() -> None:
    """Measures everything and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add, parts = parser.add_argument, {"overlap": overlap, "plans": plans}
    add("--parts", nargs="+", choices=parts, default=list(parts))
    add("--rate", default="1gbit", help="of the links")
    add("--width", type=int, default=512)
    add("--layers", type=int, default=32)
    add("--samples", type=int, default=2048, help="of a minibatch, in the part overlap")
    add("--batch", type=int, default=128, help="of a minibatch, in the part plans")
    add("--microbatches", type=int, default=8, help="the most of the plans")
    add("--rounds", type=int, default=15)
    add("--busy", type=float, default=15.0, help="seconds to see how fast hosts are")
    add("--output", type=Path, help="of the result")
    arguments = parser.parse_args()
    prepare()
    keep_freed_memory()

    result, goals = Result("data_parallel_grid", arguments.output), Goals()
    result.write(
        command(),
        machine("numpy", "numba", "chainer", "mpi4py", "mpich"),
        f"{N_HOSTS} hosts with {arguments.cpu / N_HOSTS:g} of a core and links of"
        f" {arguments.rate} each; medians of steps that take turns, ratios with"
        f" (min..max)",
    )
    for part in arguments.parts:
        parts[part](result, arguments, goals)
    result.write("", *goals.lines)
    result.save()


if __name__ == "__main__":
    main()
