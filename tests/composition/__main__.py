"""Runs composed cases: ``python -m tests.composition --help``."""

from __future__ import annotations

import argparse
import collections
import math
import sys
import time
from pathlib import Path

from tests.composition.cases import Case, parse
from tests.composition.drawing import draw
from tests.composition.driver import run_cases, run_one
from tests.composition.judging import FAULT
from tests.composition.rare import rare_cases
from tests.composition.scripts import script
from tests.composition.shrinking import shrink
from tests.composition.tally import Tally, page
from tests.support.ranks import close_shared_ranks


def print_small(case: Case, fault: str) -> None:
    """Shrinks a case that fails, and prints it as a script."""
    small = shrink(case, lambda each: run_one(each, fault).kind == FAULT)
    print(f"SMALL {small}\n\n{script(small)}\n", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Runs cases; returns the number of faults."""
    parser = argparse.ArgumentParser("python -m tests.composition")
    parser.add_argument("case", nargs="*", help="cases, each as a line")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case")
    parser.add_argument("-n", type=int, default=100, help="number of cases")
    parser.add_argument(
        "--rare",
        type=int,
        metavar="DRAWS",
        help="take the cases among so many draws whose pairs of features have the"
        " fewest cases in the file of --tally",
    )
    parser.add_argument("--fault", default="", help="name of a fault to plant")
    parser.add_argument("--tally", type=Path, help="file to add the counts to")
    parser.add_argument("--page", type=Path, help="page to write from the counts")
    parser.add_argument("--shrink", action="store_true", help="shrink what fails")
    parser.add_argument("--most-faults", type=int, default=sys.maxsize)
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="end after so many seconds"
    )
    options = parser.parse_args(arguments)
    cases = [parse(line) for line in options.case]
    if options.rare is not None:
        if options.tally is None:
            parser.error("--rare needs --tally")
        before = Tally.load(options.tally) if options.tally.exists() else Tally()
        seeds = range(options.seed, options.seed + options.rare)
        cases = rare_cases(before, options.n, seeds)
    elif not cases:
        cases = map(draw, range(options.seed, options.seed + options.n))
    tally = Tally()
    counts: collections.Counter[str] = collections.Counter()
    failed: list[Case] = []
    begin = time.perf_counter()
    for case, verdict in run_cases(cases, options.fault):
        counts[verdict.kind] += 1
        tally.add(case, verdict)
        counts["bit for bit"] += verdict.is_exact
        if verdict.kind == FAULT:
            print(f"FAULT {case}\n{verdict.words}\n", flush=True)
            failed.append(case)
            if counts[FAULT] >= options.most_faults:
                break
        if time.perf_counter() - begin > options.seconds:
            break
    if options.shrink:
        for case in failed:
            print_small(case, options.fault)
    close_shared_ranks()
    if options.tally is not None:
        if options.tally.exists():
            tally.merge(Tally.load(options.tally))
        tally.save(options.tally)
    if options.page is not None:
        options.page.write_text(page(tally, str(options.tally)))
    seconds = time.perf_counter() - begin
    print(f"{sum(counts.values()) - counts['bit for bit']} cases", end=" ")
    print(f"in {seconds:.0f} s: {dict(counts)}")
    return counts[FAULT]


if __name__ == "__main__":
    sys.exit(bool(main()))
