"""How fast DRPM settles, by L, R, thresholds and noise: simulated times.

    python -m benchmarks.heterogeneous.settling

Each row is of random cases: abilities between 0.25 and 1, believed to be off by a
factor of up to 1.5 either way, or unknown. After 10 checks the load of one processor
doubles. *settled*: in how many cases nothing moves any more after three checks.
*slowest*: the slowest processor's time over that of a perfect balance, in the end.

In the paper's tables the method is the printed one: the newest L iterations count, and
waits for the column do. They have the values that its section 7.3 compares, the chosen
ones last.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np

from benchmarks.common import quick
from benchmarks.common.results import Result, command
from benchmarks.heterogeneous.simulated import (
    PRINTED,
    SHAPE,
    Settings,
    random_case,
    run,
    settles,
    step,
)

#: Checks before the load changes, and of all.
BEFORE, ALL = 10, 20
TABLES = {
    "L, the iterations that count (all since the last check if none is given)": {
        f"L = {last or 'all'}, noise {noise:.0%}": Settings(last=last, noise=noise)
        for noise in (0.05, 0.1)
        for last in (3, 6, 8, None)
    },
    "R, the iterations between two checks": {
        f"R = {every}": Settings(every=every) for every in (10, 20, 30)
    },
    "thresholds, whole and line": {
        f"{whole}, {line}": Settings(whole=whole, line=line)
        for whole, line in ((0.4, 0.9), (0.3, 0.8), (0.4, 0.8))
    },
    "the paper's method, L": {
        f"L = {last}, noise {noise:.0%}": PRINTED._replace(last=last, noise=noise)
        for noise in (0.05, 0.1)
        for last in (3, 8, 6)
    },
    "the paper's method, R": {
        f"R = {every}": PRINTED._replace(every=every) for every in (10, 30, 20)
    },
    "the paper's method, thresholds (Fig. 13)": {
        f"{whole}, {line}": PRINTED._replace(whole=whole, line=line)
        for whole, line in ((0.4, 0.9), (0.3, 0.8), (0.4, 0.8))
    },
}


def row(settings: Settings, n: int, is_told: bool, cases: int) -> list[float]:
    """Returns the cases that settled, again after the step, and the slowest, percent.

    Args:
        settings: Settings of DRPM.
        n: Number of processors.
        is_told: Whether abilities are given at the start.
        cases: Number of cases.
    """
    random = np.random.RandomState(0)
    first, again, slowest = 0, 0, []
    for _ in range(cases):
        true, believed = random_case(random, n)
        at = BEFORE * settings.every + random.randint(settings.every)
        abilities = step(true, random.randint(n), 0.5, at)
        checks = run(abilities, believed if is_told else None, ALL, settings, random)
        first += settles(checks[:BEFORE], 0)
        # The check of the interval in which the abilities changed does not count.
        again += settles(checks, BEFORE + 1)
        slowest.append(checks[-1].slowest)
    return [100 * first / cases, 100 * again / cases, statistics.mean(slowest)]


def main() -> None:
    """Simulates everything and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=200, help="of each row")
    parser.add_argument("--output", type=Path, help="of the result")
    name = "heterogeneous_settling"
    arguments = quick.parse(parser, name, {"cases": 10})
    result = Result(name, arguments.output)
    result.write(
        command(),
        f"n, m, l, s: {SHAPE}; {arguments.cases} cases each; noise 10% if not given",
    )
    for title, rows in TABLES.items():
        result.write(
            "",
            title,
            f"{'':20} {'N':>2} {'abilities':>10} {'settled %':>10}"
            f" {'again %':>8} {'slowest':>8}",
        )
        for name, settings in rows.items():
            for n in (4, 8):
                for is_told in (True, False):
                    first, again, slowest = row(settings, n, is_told, arguments.cases)
                    result.write(
                        f"{name:20} {n:2} {'given' if is_told else 'not':>10}"
                        f" {first:10.1f} {again:8.1f} {slowest:8.3f}"
                    )
    result.save()


if __name__ == "__main__":
    main()
