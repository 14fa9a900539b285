"""Runs composed cases: ``python -m tests.composition --help``."""

from __future__ import annotations

import argparse
import collections
import sys
import time

from tests.composition.cases import parse
from tests.composition.drawing import draw
from tests.composition.driver import run_cases
from tests.composition.judging import FAULT
from tests.support.ranks import close_shared_ranks


def main(arguments: list[str] | None = None) -> int:
    """Runs cases; returns the number of faults."""
    parser = argparse.ArgumentParser("python -m tests.composition")
    parser.add_argument("case", nargs="*", help="cases, each as a line")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case")
    parser.add_argument("-n", type=int, default=100, help="number of cases")
    parser.add_argument("--fault", default="", help="name of a fault to plant")
    parser.add_argument("--most-faults", type=int, default=sys.maxsize)
    options = parser.parse_args(arguments)
    cases = [parse(line) for line in options.case]
    if not cases:
        cases = map(draw, range(options.seed, options.seed + options.n))
    counts: collections.Counter[str] = collections.Counter()
    begin = time.perf_counter()
    for case, verdict in run_cases(cases, options.fault):
        counts[verdict.kind] += 1
        counts["bit for bit"] += verdict.is_exact
        if verdict.kind == FAULT:
            print(f"FAULT {case}\n{verdict.words}\n", flush=True)
            if counts[FAULT] >= options.most_faults:
                break
    close_shared_ranks()
    seconds = time.perf_counter() - begin
    print(f"{sum(counts.values()) - counts['bit for bit']} cases", end=" ")
    print(f"in {seconds:.0f} s: {dict(counts)}")
    return counts[FAULT]


if __name__ == "__main__":
    sys.exit(bool(main()))
