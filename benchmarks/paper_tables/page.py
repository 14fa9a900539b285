"""The page: a table of the best speed-ups and the figures; and all points as CSV."""

from __future__ import annotations

import csv
import dataclasses
import os
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from benchmarks.paper_tables import plots
from benchmarks.paper_tables.points import (
    EQUAL,
    MLP_LAYERS,
    OURS,
    PRINTED,
    RATE,
    SAMPLES,
    Point,
    Scale,
)
from benchmarks.paper_tables.rows import Row, rows
from benchmarks.paper_tables.samples import read

#: Results of each figure in the paper.
PAPER = {
    6: "In the paper 2 and 4 processes are fastest with 5 microbatches (1.34 and 1.93)."
    " 8, 16 and 32 processes are fastest with 20 (2.70, 3.49, 3.72). With 12 or more, 2"
    " processes are slower than without microbatches. Its equation (3), fitted to 3, 12"
    " and 40 microbatches, is close to its measurements on 16 processes (Fig. 12).",
    8: "In the paper InfiniBand between 4 nodes and NVLink within one make hardly any"
    " difference. Here the links of 4 hosts have three rates.",
    9: "Speed-ups over the same hosts without microbatches. In the paper they fall"
    " below an input size of 3,000, and for most sizes of microbatch at 10,000.",
    10: "As Fig. 9. In the paper microbatches of 120 samples are the fastest from 3,000"
    " on, and among the slowest up to 2,000.",
    11: "As Fig. 10. In the paper nothing changes at 10,000.",
    13: "In the paper 8 processes reach 2.32 with 20 microbatches, 16 less than 8 or 4,"
    " all from 4 processes on 1.5 at best or more.",
    14: "In the paper there is no clear difference from 4 processes on.",
}
TITLES = {
    6: "Fig. 6, 7 and 12: number of microbatches",
    8: "Fig. 8: bandwidth",
    9: "Fig. 9: input size, 4 processes",
    10: "Fig. 10: input size, 8 processes",
    11: "Fig. 11: input size, 16 processes",
    13: "Fig. 13: VGG16",
    14: "Fig. 14: ResNet50",
}
CSV_COLUMNS = (
    *(field.name for field in dataclasses.fields(Point)),
    "cuts",
    "step_seconds",
    "serial_seconds",
    "speedup",
    "equation_3",
    "error_of_equation_3",
    "stolen",
)


def write(
    figures: dict[int, list[Point]], data: Path, folder: Path, cpu: float, scale: Scale
) -> None:
    """Writes the page, points.csv and the figures that have measured points.

    Args:
        figures: Points by figure; one appears if it has a measured point that is not
            in those before it.
        data: Folder of the samples, and of points.csv.
        folder: Folder of the page and its figures.
        cpu: Share of all hosts together, in cores.
        scale: Scale of the experiments.
    """
    found = rows(data, (point for points in figures.values() for point in points))
    write_csv(data / "points.csv", found.values())
    every = os.path.relpath(data / "points.csv", folder)
    text = [
        *introduction(data, cpu, scale, every),
        *best_speedups(found),
        *remarks(found),
    ]
    shown: set[Point] = set()
    for figure, points in figures.items():
        mine = [found[point] for point in dict.fromkeys(points) if point in found]
        if not shown.issuperset(row.point for row in mine):
            shown.update(row.point for row in mine)
            names = plots.draw(figure, mine, folder)
            text += ["", f"## {TITLES[figure]}", "", PAPER[figure], ""]
            text += [f"![Fig. {name[3:5].lstrip('0')}]({name})" for name in names]
    path = folder / "README.md"
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    print(f"{len(found)} points in {path} and {data / 'points.csv'}", flush=True)


def introduction(data: Path, cpu: float, scale: Scale, every: str) -> list[str]:
    """Returns a text of the experiments and the machine."""
    samples = [s for group in read(data / SAMPLES).values() for s in group]
    machines = sorted({sample.machine for sample in samples})
    loads = [sample.load for sample in samples]
    return [
        "# The paper's figures 6 to 14, measured again",
        "",
        "Written by `python -m benchmarks.paper_tables`; do not edit. Every point is in"
        f" [points.csv]({every}).",
        "",
        f"Emulated hosts have equal shares of {cpu:g} cores (at most one each) and"
        " links of 1 Gbit/s, unless the figure says otherwise. The perceptron has"
        f" {MLP_LAYERS} layers of width {scale.width}, for the paper's 5,000; VGG16 and"
        f" ResNet50 get images of {scale.image} x {scale.image}. A step is forward and"
        " backward. Its speed-up is over the undivided step in plain Chainer, on one"
        " such host in the same round; with several rounds it is their median. The C"
        " library keeps the memory that a step frees, for the undivided step as well.",
        "",
        "All hosts together have the same cores, so each of 16 is half as fast as each"
        " of 8. Compare speed-ups, not seconds, between numbers of hosts: they were"
        " measured on different days.",
        "",
        *[f"Measured on {machine}." for machine in machines],
        f"Load average when hosts came up: {min(loads):.1f} to {max(loads):.1f}.",
        "",
    ]


def best_speedups(found: dict[Point, Row]) -> list[str]:
    """Returns the table of the best speed-up of either cut, of usual size and links."""
    columns = ("model", "hosts", "paper's cut", "by equation (3)", "our cut")
    text = [f"| {' | '.join(columns)} | printed in the paper |", "|---" * 6 + "|"]
    usual = [row for row in found.values() if is_usual(row, found)]
    for model, hosts in dict.fromkeys((r.point.model, r.point.hosts) for r in usual):
        mine = [r for r in usual if (r.point.model, r.point.hosts) == (model, hosts)]
        equal, ours = (
            best([r for r in mine if r.point.cut == c]) for c in (EQUAL, OURS)
        )
        printed = PRINTED.get(model, {}).get(hosts)
        cells = [
            model,
            str(hosts),
            named(equal),
            predicted(equal),
            named(ours),
            f"{printed[1]:.2f} (m = {printed[0]})" if printed else "",
        ]
        text.append(f"| {' | '.join(cells)} |")
    return text


def is_usual(row: Row, found: dict[Point, Row]) -> bool:
    """Returns whether a row is of the usual links and size."""
    sizes = [p.size for p in found if p.model == row.point.model]
    usual = max(sorted(set(sizes)), key=sizes.count)
    return row.point.rate == RATE and row.point.size == usual


def best(mine: Sequence[Row]) -> Row | None:
    """Returns the row with the greatest speed-up, if there are any."""
    return max(mine, key=attrgetter("speedup"), default=None)


def named(row: Row | None) -> str:
    """Formats a speed-up with how it was reached."""
    if row is None:
        return ""
    return f"{row.speedup:.2f} (m = {row.point.microbatches}, {row.point.schedule})"


def predicted(row: Row | None) -> str:
    """Formats the speed-up by equation (3), if there is one."""
    if row is None or not row.equation:
        return ""
    return f"{row.speedup_by_equation:.2f}{' (fitted)' if row.is_fitted else ''}"


def remarks(found: dict[Point, Row]) -> list[str]:
    """Returns remarks on the columns, the error of equation (3), and older samples."""
    errors = np.abs([r.error_of_equation for r in found.values() if not r.is_fitted])
    errors = errors[~np.isnan(errors)]
    text = [
        "",
        "The best of all numbers m of microbatches. The paper's cut has equally many"
        " layers on every host; ours is what `best_plan` chose for the microbatches and"
        " the schedule, with at most one stage on every host. Equation (3) is the"
        " paper's model of a step, with its three constants from three measured steps"
        " of the same hosts, cut, schedule and round. If the best is one of these"
        " three, it is not a prediction.",
    ]
    if errors.size:
        text[-1] += (
            f" At the {errors.size} points that it was not fitted to it is off by"
            f" {np.median(errors):.1%} in the median, by {errors.max():.1%} at most."
        )
    older = [row.point for row in found.values() if row.is_older]
    if older:
        groups = sorted({f"{point.model} {point.size}" for point in older})
        text += [
            "",
            f"{len(older)} points ({', '.join(groups)}) are older: the machine may have"
            " been needed elsewhere, and most steps may have got memory from the system"
            " while they were timed, as a first step does. Where that is so of the"
            " undivided step, the speed-up is too high.",
        ]
    return text


def write_csv(path: Path, found: Iterable[Row]) -> None:
    """Writes a line for each point."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(CSV_COLUMNS)
        for row in found:
            error = row.error_of_equation
            numbers = (
                row.step,
                np.median(row.serial),
                row.speedup,
                # The median error, as seconds of the median step.
                row.step * (1 + error),
                error,
                np.nan if row.stolen is None else row.stolen,
            )
            cuts = " ".join(map(str, row.cuts))
            out.writerow([*vars(row.point).values(), cuts, *map(digits, numbers)])


def digits(value: float) -> str:
    """Formats a number with the digits that are the same on all machines."""
    # Rounding removes remainders of zero, and adding 0.0 its sign.
    return "" if np.isnan(value) else f"{round(value, 9) + 0.0:.6g}"
