"""Shows how near to the optimum schedules of random profiles are proved to be.

    python -m benchmarks.optimal_schedule

Each profile has 2 to 6 ranks and 2 to 12 microbatches. Its ranks may hold any number of
microbatches, as many as the first rank does in 1F1B, or half as many. F, I, W and
messages take equally long on all stages, or differ mildly or widely. For each profile
there is the gap of the list schedule to the bound without a limit of memory, and what
`optimal_schedule` finds. Target: a median gap of at most 2 % in 30 s. Writes
benchmarks/results/optimal_schedule.txt.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.common.results import Result, command, machine
from divisible.schedules import Costs, list_schedule, optimal_schedule
from divisible.schedules.optimal import SOLVERS
from divisible.schedules.simulator import simulate

#: For each kind of profile, the ranges of F, I, W and of messages, in seconds.
KINDS = {
    "equal": ((0.5, 1.5), (0.0, 1.0)),
    "mild": ((0.8, 1.2), (0.0, 0.2)),
    "wide": ((0.2, 2.0), (0.0, 0.5)),
}
# Gaps below this are rounding of the solvers.
_PROVED = 1e-5


def random_costs(random: np.random.RandomState, kind: str, n_stages: int) -> Costs:
    """Returns random costs.

    Args:
        random: The source of random numbers.
        kind: One of `KINDS`.
        n_stages: Number of stages.
    """
    computation, message = KINDS[kind]
    n = 1 if kind == "equal" else n_stages
    times = [np.resize(random.uniform(*computation, n), n_stages) for _ in range(3)]
    edges = 1 if kind == "equal" else n_stages - 1
    transfer = np.resize(random.uniform(*message, edges), n_stages - 1)
    return Costs(*times, transfer=transfer)


def main() -> None:
    """Runs the benchmark and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profiles", type=int, default=45)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--solvers", nargs="+", choices=SOLVERS, default=[*SOLVERS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()

    result = Result("optimal_schedule", args.output)
    packages = ["ortools"] if "cp_sat" in args.solvers else []
    result.write(
        command(),
        machine("numpy", "scipy", *packages),
        f"{args.profiles} random profiles, {args.seconds:g} s for each solver",
        "",
        "held: the number of microbatches that a rank may hold",
        "list: gap of the list schedule to the bound without a limit of memory",
        "solver: change of the time against the list schedule, gap, seconds taken",
        "",
    )
    head = f"{'profile':<9}{'ranks':>6}{'microbatches':>14}{'held':>6}{'list':>8}"
    result.write(head + "".join(f"{s:>9}{'gap':>8}{'s':>7}" for s in args.solvers))
    random = np.random.RandomState(args.seed)
    gaps: dict[str, list[float]] = {name: [] for name in ["list", *args.solvers]}
    for number in range(args.profiles):
        kind = [*KINDS][number % 3]
        ranks, m = random.randint(2, 7), random.randint(2, 13)
        held = [None, ranks, max(1, ranks // 2)][number // 3 % 3]
        costs = random_costs(random, kind, ranks)
        first = simulate(list_schedule(costs, m, held, n_stages=ranks), costs)
        gaps["list"].append(first.gap)
        line = f"{kind:<9}{ranks:>6}{m:>14}{held or 'any':>6}{first.gap:8.1%}"
        for solver in args.solvers:
            begin = time.perf_counter()
            found = optimal_schedule(
                costs, m, held, n_stages=ranks, seconds=args.seconds, solver=solver
            )
            seconds = time.perf_counter() - begin
            gaps[solver].append(found.gap)
            change = found.makespan / first.makespan - 1
            line += f"{change:9.1%}{found.gap:8.2%}{seconds:7.1f}"
        result.write(line)
    result.write()
    for name, found in gaps.items():
        proved = np.mean(np.array(found) < _PROVED)
        result.write(
            f"{name}: median gap {np.median(found):.2%}, largest {max(found):.2%},"
            f" {proved:.0%} proved the shortest"
        )
    result.save()


if __name__ == "__main__":
    main()
