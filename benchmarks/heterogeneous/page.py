"""The page of Fig. 11 and 12: pictures, tables and findings."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.findings import as_markdown
from benchmarks.common.results import command
from benchmarks.heterogeneous import parameters
from benchmarks.heterogeneous.findings import findings
from benchmarks.heterogeneous.measured import METHODS, OURS, Measured, read
from benchmarks.heterogeneous.picture import draw_checks, draw_efficiency
from benchmarks.heterogeneous.points import FIG_12, Point

COLUMNS = (
    *("condition", "hosts", "way", "efficiency", "least", "greatest", "simulated"),
    *("step_seconds", "off"),
)


def write(folder: Path, file: Path, like: Point) -> None:
    """Writes the page, its pictures, and all ways as CSV.

    Args:
        folder: Folder to write to.
        file: File with a line for each measured point.
        like: Point with the settings of the points to write.
    """
    measured = read(file, like)
    folder.mkdir(parents=True, exist_ok=True)
    text = [*introduction(measured), "", "## Findings", ""]
    text += as_markdown([*findings(measured), *parameters.findings()])
    for condition in sorted({each.point.condition for each in measured}):
        mine = [each for each in measured if each.point.condition == condition]
        name = f"condition_{condition.lower()}.png"
        draw_efficiency(mine, folder / name)
        text += ["", f"## Condition {condition}", "", *abilities(mine), ""]
        text += [f"![Condition {condition}]({name})", "", *table(mine)]
    text += checks(measured, folder)
    path = folder / "README.md"
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    write_csv(folder / "points.csv", measured)
    print(f"{len(measured)} points in {path}", flush=True)


def introduction(measured: Sequence[Measured]) -> list[str]:
    """Returns a text of the experiment and the machine."""
    point = measured[0].point
    n, m, l, s = point.shape  # noqa: E741
    machines = sorted({each.content["machine"] for each in measured})
    how = "simulated" if point.is_simulated else "measured again"
    return [
        f"# Fig. 11 of Ozawa, Sugaya and Aso (2005), {how}",
        "",
        f"Written by `{command()}`; do not edit. All numbers of groups are in"
        " [points.csv](points.csv).",
        "",
        "Parallel efficiency by equation (11) of the paper's five methods. Hosts have"
        f" {point.cpu:g} cores together, and links of {point.rate}. The network has {n}"
        f" inputs, {m} hidden units and {l} outputs, and learns {s} samples:"
        f" {point.factor} times the paper's units and samples. Methods 1 and 2 have the"
        " best number of groups. DRPM is the printed one, with and without initial"
        f" abilities, after {point.checks} checks or more.",
        "",
        *([] if point.is_simulated else accuracy(measured)),
        "",
        *(f"Machine: {machine}." for machine in machines),
    ]


def accuracy(measured: Sequence[Measured]) -> list[str]:
    """Returns a text of the rounds, the load, and the error of simulated values."""
    point = measured[0].point
    loads = [each.content["load"] for each in measured]
    offs = [off for each in measured for off in each.content["off"]]
    dates = sorted(each.content["date"] for each in measured)
    errors = [
        abs(each.simulated(method) / each.efficiency(method) - 1)
        for each in measured
        for method in METHODS
    ]
    return [
        f"The hosts are emulated. Values are medians, and ranges, of {point.rounds}"
        " rounds, in which all methods take turns, and each host alone. Measured"
        f" from {dates[0]} to {dates[-1]} with a load average of {min(loads):.1f} to"
        f" {max(loads):.1f}. Hosts were off their shares by {max(offs):.0%} at most.",
        "",
        "Dashed lines are simulated: the work of the slowest host of each column, and"
        " the elements of all messages at the rate of the links. They are off by"
        f" {statistics.median(errors):.0%} in the median, {max(errors):.0%} at most.",
    ]


def abilities(mine: Sequence[Measured]) -> list[str]:
    """Returns a text of the abilities that hosts have, and of those that are told."""
    point = max((each.point for each in mine), key=lambda point: point.hosts)
    true, told = (
        ", ".join(f"{ability:g}" for ability in each)
        for each in (point.true, point.told)
    )
    return [f"Abilities of the hosts: {true}. Methods are told {told}."]


def table(mine: Sequence[Measured]) -> list[str]:
    """Returns a table of the efficiencies: medians and ranges, by number of hosts."""
    header = ["method", *(f"{each.point.hosts} hosts" for each in mine)]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    methods = [*METHODS, *(m for m in OURS if m in mine[0].efficiencies)]
    for method in methods:
        cells = [f"{cell(each, method)}" for each in mine]
        lines.append(f"| {' | '.join([method, *cells])} |")
    return lines


def checks(measured: Sequence[Measured], folder: Path) -> list[str]:
    """Returns the section of Fig. 12, and draws it, if its point was measured."""
    for each in measured:
        if (each.point.condition, each.point.hosts) == FIG_12:
            draw_checks(each, folder / "checks.png")
            return [
                "",
                "## Fig. 12: checks of DRPM",
                "",
                f"The {each.point.every} iterations before each check, without the time"
                " of remapping.",
                "",
                "![Fig. 12](checks.png)",
            ]
    return []


def cell(measured: Measured, method: str) -> str:
    """Formats an efficiency, its range, and the best number of groups of hosts."""
    low, high = measured.range(method)
    text = f"{measured.efficiency(method):.2f} ({low:.2f}..{high:.2f})"
    _, comma, groups = measured.way(method).rpartition(", ")
    return f"{text}, in {groups}" if comma and groups.isdigit() else text


def write_csv(path: Path, measured: Sequence[Measured]) -> None:
    """Writes a line for each way of each point."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(COLUMNS)
        for each in measured:
            off = max(each.content["off"])
            for way, values in each.efficiencies.items():
                numbers = (
                    *(each.efficiency(way), min(values), max(values)),
                    each.simulated(way),
                    statistics.median(each.content["ways"][way]),
                    off,
                )
                place = (each.point.condition, each.point.hosts, way)
                out.writerow([*place, *(f"{number:.4g}" for number in numbers)])
