"""Parallel efficiency of mappings on unequal hosts: Fig. 11 of Ozawa et al.

    python -m benchmarks.heterogeneous.efficiency
    python -m benchmarks.heterogeneous.efficiency --quick
    python -m benchmarks.heterogeneous.efficiency --conditions A --hosts 6 7

The five methods of the paper on 4 to 8 hosts, in its conditions A and B, with links of
1 Gbit/s. A whole run takes about 11 minutes, and `--quick` 3. Each finished point is
kept at once: a run that was stopped goes on where it was. Then the page is written: a
picture and a table for each condition, and the paper's findings beside ours.

Hosts have shares of a core in the ratio of the abilities that the paper's DRPM found.
Methods are told those that the paper assumes, which are others. The network is the
paper's with 16 times the hidden units and samples, so that partitions are the same, and
a step takes many periods in which shares are given out. All methods take turns, and so
does each host alone with the whole problem, which is T_series of equation (11). A round
in which a host is off its share by more than a tenth is repeated. Methods 1 and 2 are
measured with each number of groups, and the best counts. DRPM is measured after two
checks, and with 4 hosts of condition B after five (Fig. 12).

Where no hosts can be emulated, `--simulate` computes the seconds of a step from the
work and the messages of each host. The page of measured points shows how good that is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.common import json_lines
from benchmarks.common.hosts import (
    add_hosts_arguments,
    keep_freed_memory,
    prepare,
)
from benchmarks.common.results import ROOT
from benchmarks.heterogeneous.mappings import CONDITIONS
from benchmarks.heterogeneous.points import (
    FIG_12,
    FIG_12_CHECKS,
    HOSTS,
    Point,
    from_json,
)
from benchmarks.heterogeneous.shares import run_points

#: Folders of the page, and of the measurements. A fresh clone has no measurements, and
#: measures everything.
PAGE, DATA = ROOT / "docs" / "paper_mapping", ROOT / "build" / "paper_mapping"
FILE = "points.jsonl"
#: Settings of a quick run.
QUICK = {"factor": 8, "rounds": 1}


def main() -> None:
    """Measures the points that are missing, and writes the page."""
    arguments = parse()
    points = wanted(arguments)
    file = arguments.data / FILE
    todo = missing(file, points)
    print(f"{len(todo)} of {len(points)} points are not yet in {file}", flush=True)
    if todo and arguments.simulate:
        # Here, because the process that starts hosts must not start MPI.
        from benchmarks.heterogeneous.simulated_points import simulate

        for point in todo:
            simulate(file, point)
    elif todo:
        prepare()
        keep_freed_memory()
        measure(file, todo)
    # Here, because matplotlib is not needed to measure.
    from benchmarks.heterogeneous.page import write

    write(arguments.page, file, points[0])


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--conditions", nargs="+", choices=list(CONDITIONS), default=list(CONDITIONS))
    add(
        "--hosts",
        nargs="+",
        type=int,
        choices=range(2, 9),
        default=list(HOSTS),
        metavar="N",
        help="numbers of hosts, from 2 to 8",
    )
    add("--rate", default="1gbit", help="of the links")
    add("--rounds", type=int, default=Point.rounds)
    add("--steps", type=int, default=Point.steps, help="of each method in a round")
    add("--checks", type=int, help="of DRPM before the rounds; default: 2, or 5")
    add("--factor", type=int, default=Point.factor, help="times units and samples")
    add("--exact", action="store_true", help="tell methods what hosts have")
    add("--ours", action="store_true", help="measure our own variants as well")
    add("--quick", action="store_true", help="a smaller network, one round")
    add("--simulate", action="store_true", help="compute all seconds, without hosts")
    add("--output", type=Path, help="folder, in place of docs/paper_mapping")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    for name in ("quick", "simulate"):
        # A smaller or simulated page does not replace the measured one.
        if vars(arguments)[name]:
            arguments.output = arguments.output or DATA / name
    arguments.data = arguments.output or DATA
    arguments.page = arguments.output or PAGE
    return arguments


def wanted(arguments: argparse.Namespace) -> list[Point]:
    """Returns the points that the command line names."""
    return [
        Point(
            condition,
            hosts,
            rate=arguments.rate,
            factor=arguments.factor,
            cpu=arguments.cpu,
            rounds=arguments.rounds,
            steps=arguments.steps,
            checks=arguments.checks or checks_of(condition, hosts),
            is_exact=arguments.exact,
            with_ours=arguments.ours,
            is_simulated=arguments.simulate,
        )
        for condition in arguments.conditions
        for hosts in sorted(set(arguments.hosts))
    ]


def checks_of(condition: str, hosts: int) -> int:
    """Returns the checks of DRPM at a point: more where Fig. 12 shows them."""
    return FIG_12_CHECKS if (condition, hosts) == FIG_12 else Point.checks


def missing(file: Path, points: list[Point]) -> list[Point]:
    """Returns the points that a file does not have."""
    done = {from_json(line["point"]) for line in json_lines.read(file)}
    return [point for point in points if point not in done]


def measure(file: Path, points: list[Point]) -> None:
    """Measures points on hosts that are started once.

    Args:
        file: File to which each point is appended.
        points: Points, whose links have the same rate.

    Raises:
        HostsFailedError: If a process failed. The points before it are in the file.
        subprocess.TimeoutExpired: If the points took too long.
    """
    job = {"file": str(file.resolve())}
    run_points(points, "benchmarks.heterogeneous.rounds", job)


if __name__ == "__main__":
    main()
