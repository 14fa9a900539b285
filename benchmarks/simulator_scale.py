"""Generates, validates and simulates 1F1B at a large scale on one core.

    python -m benchmarks.simulator_scale

Target: 1,024 ranks x 4,096 microbatches within 60 s and 4 GiB. Writes
benchmarks/results/simulator_scale.txt.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from pathlib import Path

from benchmarks.common.results import Result, command, machine
from divisible.schedules import one_f_one_b
from divisible.schedules.costs import Costs
from divisible.schedules.simulator import simulate


def peak_gib() -> float:
    """Reads the peak of resident memory.

    Returns:
        GiB used by this process so far at its peak.
    """
    # Kibibytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def main() -> None:
    """Runs the benchmark and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--microbatches", type=int, default=4096)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    ranks, microbatches = args.ranks, args.microbatches
    lines = [f"{'step':<34}{'seconds':>9}{'peak GiB':>10}"]
    total = 0.0

    def measure(what, function):
        nonlocal total
        begin = time.perf_counter()
        result = function()
        seconds = time.perf_counter() - begin
        total += seconds
        lines.append(f"{what:<34}{seconds:9.2f}{peak_gib():10.2f}")
        return result

    schedule = measure("generate", lambda: one_f_one_b(ranks, microbatches))
    report = measure("validate", schedule.validate)
    costs = Costs(1.0, 1.0, 1.0, transfer=0.0, latency=0.0)
    timeline = measure("simulate (validates again)", lambda: simulate(schedule, costs))
    bubble = measure("bubble per rank", lambda: timeline.bubble)
    path = measure("critical path", lambda: timeline.critical_path)
    lines.append(f"{'all of these':<34}{total:9.2f}{peak_gib():10.2f}")
    expected = 3.0 * (microbatches + ranks - 1)
    assert timeline.makespan == expected, (timeline.makespan, expected)
    assert report.in_flight[0] == min(microbatches, ranks)
    costs = Costs(1.0, 1.0, 1.0, transfer=0.05, latency=0.01)
    total = 0.0
    measure("simulate, no overlap", lambda: simulate(schedule, costs, overlap=False))

    result = Result("simulator_scale", args.output)
    result.write(
        command(),
        f"one core of: {machine('numpy')}",
        f"{ranks} ranks, {microbatches} microbatches, 1F1B: {len(schedule):,} actions; "
        f"makespan {timeline.makespan:g} = (m + d - 1) (F + B), bubble "
        f"{bubble.mean():.1%}, critical path of {len(path):,} events",
        "",
        *lines,
    )
    result.save()


if __name__ == "__main__":
    main()
