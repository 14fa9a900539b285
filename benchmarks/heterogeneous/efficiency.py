"""Parallel efficiency of mappings on unequal hosts: equation (11) of Ozawa et al.

    python -m benchmarks.heterogeneous.efficiency

Hosts have shares of a core in the ratios of the paper's conditions A and B (the first N
of them). The network is the paper's with 8 times the hidden units and 8 times the
samples, so that partitions are the same, and a step takes many periods in which shares
are given out. All mappings take turns, and so does each host alone with the whole
problem, which is T_series; a round in which a host is off its share by more than a
tenth is repeated. Method 1 and H_rev are told at the number of groups at which they are
best (the paper's Fig. 11).
"""

from __future__ import annotations

import argparse
import statistics
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
from benchmarks.common.results import Result, command, machine
from benchmarks.data_parallel.exchange import Goals
from benchmarks.heterogeneous.mappings import CONDITIONS, SHAPE, divisors
from heterogeneous.estimates import efficiency

#: Hosts and links.
TABLES = ((4, "100mbit"), (5, "100mbit"), (8, "100mbit"), (8, "1gbit"))
#: Numbers of hosts with which remapping is measured as well.
REMAPPED = (4, 8)
#: Least throughput of SRPM over that of the best H_rev, and over that of method 1 in
#: condition A; and of DRPM without abilities over DRPM with them.
OVER_H_REV, OVER_METHOD_1, UNKNOWN = 0.97, 1.25, 0.95
DEADLINE = 1800


def enlarged(factor: int) -> tuple[int, int, int, int]:
    """Returns the paper's sizes with more hidden units and samples."""
    n, m, l, s = SHAPE  # noqa: E741
    return n, m * factor, l, s * factor


def ways_of(n: int) -> dict[str, dict[str, Any]]:
    """Returns the ways that are compared on so many hosts."""
    ways: dict[str, dict[str, Any]] = {}
    for mapping in ("method 1", "H_rev"):
        for groups in divisors(n):
            ways[f"{mapping}, {groups}"] = {"mapping": mapping, "groups": groups}
    for mapping in ("SRPM", "SRPM, any"):
        ways[mapping] = {"mapping": mapping}
    if n in REMAPPED:
        ways["DRPM, given"] = {"mapping": "SRPM", "remaps": "given"}
        ways["DRPM, unknown"] = {"mapping": "equal", "remaps": "unknown"}
    return ways


def shares_of(abilities: Sequence[float], cpu: float) -> list[float]:
    """Returns shares of a core in the ratio of abilities."""
    return [cpu * ability / sum(abilities) for ability in abilities]


def efficiencies(found: dict[str, Any]) -> dict[str, list[float]]:
    """Returns equation (11) of each way, in each round."""
    return {
        name: [efficiency(s, alone) for s, alone in zip(seconds, found["alone"])]
        for name, seconds in found["ways"].items()
    }


def best(values: dict[str, list[float]], prefix: str) -> str:
    """Returns the name of the best way of those that begin so."""
    names = [name for name in values if name.startswith(f"{prefix},")]
    return max(names, key=lambda name: statistics.median(values[name]))


def write_table(
    result: Result, goals: Goals, title: str, found: dict[str, Any], is_a: bool
) -> None:
    """Writes the results of one set of hosts, and adds their goals.

    Args:
        result: Result to write to.
        goals: Goals to add to.
        title: Title of the hosts.
        found: Result of `benchmarks.heterogeneous.ranks.measure`.
        is_a: Whether it is condition A.
    """
    values = efficiencies(found)
    result.write("", title, f"{'':16} {'efficiency':>10}  (min..max)   ms a step")
    bests = {best(values, "method 1"), best(values, "H_rev")}
    for name, each in values.items():
        step = statistics.median(found["ways"][name])
        mark = "  best of its kind" if name in bests else ""
        result.write(
            f"{name:16} {statistics.median(each):10.3f}  ({min(each):.3f}.."
            f"{max(each):.3f}) {1e3 * step:9.1f}{mark}"
        )
    off = ", ".join(f"{part:.0%}" for part in found["off"])
    result.write(f"hosts were off their shares by at most, round by round: {off}")
    for name, checks in found["checks"].items():
        actions = " ".join(str(check["action"]) for check in checks)
        result.write(f"{name}: {actions}")
    seconds = found["ways"]
    h_rev, method_1 = best(values, "H_rev"), best(values, "method 1")
    goals.add_ratio(
        f"{title}: SRPM over {h_rev}", seconds[h_rev], seconds["SRPM"], OVER_H_REV
    )
    if is_a:
        goals.add_ratio(
            f"{title}: SRPM over {method_1}",
            seconds[method_1],
            seconds["SRPM"],
            OVER_METHOD_1,
        )
    if "DRPM, given" in seconds:
        goals.add_ratio(
            f"{title}: DRPM, unknown over given",
            seconds["DRPM, given"],
            seconds["DRPM, unknown"],
            UNKNOWN,
        )


def main() -> None:
    """Measures everything and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--conditions", nargs="+", choices=list(CONDITIONS), default=list(CONDITIONS))
    add("--hosts", nargs="+", type=int, help="only these numbers of hosts")
    add("--rates", nargs="+", help="only links of these rates")
    add("--rounds", type=int, default=5)
    add("--steps", type=int, default=5, help="of each mapping in a round")
    add("--factor", type=int, default=8, help="times hidden units and samples")
    add("--output", type=Path, help="of the result")
    arguments = parser.parse_args()
    prepare()
    keep_freed_memory()

    result = Result("heterogeneous_efficiency", arguments.output)
    goals = Goals()
    shape = enlarged(arguments.factor)
    result.write(
        command(),
        machine("numpy", "numba", "chainer", "mpi4py", "mpich"),
        f"n, m, l, s: {shape}; shares of {arguments.cpu:g} cores; medians of"
        f" {arguments.rounds} alternating rounds of {arguments.steps} steps",
    )
    for condition in arguments.conditions:
        for n, rate in TABLES:
            if n not in (arguments.hosts or [n]) or rate not in (
                arguments.rates or [rate]
            ):
                continue
            abilities = list(CONDITIONS[condition][:n])
            found = run(
                Hosts(n, shares_of(abilities, arguments.cpu), rate),
                "benchmarks.heterogeneous.ranks",
                {
                    "abilities": abilities,
                    "shape": shape,
                    "ways": ways_of(n),
                    "rounds": arguments.rounds,
                    "steps": arguments.steps,
                },
                DEADLINE,
            )
            title = f"condition {condition}, {n} hosts, links of {rate}"
            write_table(result, goals, title, found, condition == "A")
    result.write("", *goals.lines)
    result.save()


if __name__ == "__main__":
    main()
