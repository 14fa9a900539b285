"""The tables: Markdown for people, CSV for programs."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from benchmarks.paper_tables import plots
from benchmarks.paper_tables.points import (
    EQUAL,
    FIGURE_7,
    FIGURE_13,
    MLP_LAYERS,
    OURS,
    RATE,
    SAMPLES,
    Point,
    Scale,
)
from benchmarks.paper_tables.rows import Row, rows
from benchmarks.paper_tables.samples import read
from benchmarks.paper_tables.verdicts import disturbed, older, repeatability, targets

TITLES = {
    6: "Fig. 6, 7 and 12: number of microbatches",
    8: "Fig. 8: bandwidth",
    9: "Fig. 9: input size, 4 processes",
    10: "Fig. 10: input size, 8 processes",
    11: "Fig. 11: input size, 16 processes",
    13: "Fig. 13: VGG16",
    14: "Fig. 14: ResNet50",
}
PAPER = {
    6: "In the paper 2 and 4 processes are fastest with 5 microbatches (1.34 and 1.93),"
    " 8, 16 and 32 with 20 (2.70, 3.49, 3.72); with 12 or more, 2 processes are slower"
    " than without microbatches. Its equation (3), fitted to 3, 12 and 40 microbatches,"
    " is close to its measurements on 16 processes (Fig. 12).",
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
COLUMNS = (
    "hosts",
    "cut, schedule",
    "micro-batches",
    "step s",
    "speed-up",
    "hosts' speed",
    "eq. (3)",
    "simulated",
    "replayed",
    "paper",
)

MODELS = ("mlp", "vgg16", "resnet50")
CSV_COLUMNS = (
    *(field.name for field in dataclasses.fields(Point)),
    "cuts",
    "step_seconds",
    "serial_seconds",
    "speedup",
    "relative_speed",
    "equation_3",
    "error_of_equation_3",
    "simulated",
    "error_simulated",
    "replayed",
    "error_replayed",
    "attained",
    "stolen",
)


def write(
    figures: dict[int, list[Point]], data: Path, folder: Path, cpu: float, scale: Scale
) -> None:
    """Writes README.md, points.csv and the figures of which something was measured.

    Args:
        figures: Points by figure; one appears if it has a measured point that is not
            in those before it.
        data: Where the samples are, and points.csv goes.
        folder: Where the page goes, and its figures.
        cpu: Of all hosts together, in cores.
        scale: Of the experiments.
    """
    every = [point for points in figures.values() for point in points]
    found = rows(data, every, cpu)
    write_csv(data / "points.csv", found.values())
    text = [*introduction(data, cpu, scale), *summary(found)]
    shown: set[Point] = set()
    for figure, points in figures.items():
        mine = [found[point] for point in dict.fromkeys(points) if point in found]
        if not shown.issuperset(row.point for row in mine):
            shown.update(row.point for row in mine)
            names = plots.draw(figure, mine, folder)
            text += ["", f"## {TITLES[figure]}", "", PAPER[figure], ""]
            text += [f"![Fig. {name[3:5].lstrip('0')}]({name})" for name in names]
            text += ["", *table(figure, mine)]
    path = folder / "README.md"
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    print(f"{len(found)} points in {path} and points.csv", flush=True)


def introduction(folder: Path, cpu: float, scale: Scale) -> list[str]:
    """Says what was done, and on what."""
    samples = [s for group in read(folder / SAMPLES).values() for s in group]
    machines = sorted({sample.machine for sample in samples})
    loads = [sample.load for sample in samples]
    return [
        "# The paper's figures 6 to 14, measured again",
        "",
        "Written by `python -m benchmarks.paper_tables`; do not edit.",
        "",
        f"Emulated hosts with equal shares of {cpu:g} cores (at most one each), links"
        f" of 1 Gbit/s unless the table says otherwise. The perceptron has {MLP_LAYERS}"
        f" layers of width {scale.width}, for the paper's 5,000, VGG16 and ResNet50 get"
        f" images of {scale.image} x {scale.image}. The C library keeps the memory that"
        " a step frees, for the undivided step as well.",
        "",
        "- **cut**: the paper's, of equally many layers on every host, or ours: what"
        " `best_plan` chose for the microbatches and the schedule, at most one stage on"
        " every host;",
        "- **step**: median of the measured steps, forward and backward. Rows of hosts"
        " are of different days, on which the machine may be faster or slower: between"
        " them compare speed-ups, not seconds;",
        "- **speed-up**: over the undivided model in plain Chainer on one such host in"
        " the same round, the median and the range of the rounds;",
        "- **hosts' speed**: of all hosts together in the step, with what messages took"
        " between phases, relative to profiles of the layers on a whole core and to the"
        " hosts' share of one. A host with a part of a core finds its caches cold"
        " whenever its turn comes; and the profiles may be of a slower machine;",
        "- **eq. (3)**: the paper's model, its three constants from three measured"
        " points of the same row of hosts, cut, schedule and round;",
        "- **simulated**: from profiles of the layers on a whole core, the links, and"
        " how much slower the stage of each layer was, and how late messages were, in"
        " the steps with the next fewer and the next more microbatches of the same row"
        " of hosts, cut, schedule and round, where our cuts may be others; phases vary"
        " as in these two. The step itself is not used for it. At the ends of a series"
        " there may be one other only, or one that is in no table;",
        "- **replayed**: from the times of each phase in the measured step itself, and"
        " how long its messages took on average: a test of the simulator;",
        "- **paper**: the speed-up printed there. It prints those of the text only.",
        "",
        "The errors in brackets are medians of those in each round, and the seconds"
        " before them those of the median step with that error.",
        "",
        *[f"Measured on {machine}." for machine in machines],
        f"Load average when hosts came up: {min(loads):.1f} to {max(loads):.1f}.",
        "",
    ]


def summary(found: dict[Point, Row]) -> list[str]:
    """Says how good the predictions are, and compares the cuts."""
    text = ["## Summary", ""]
    text += ["| model | points | eq. (3) | simulated | replayed |"]
    text += ["|---|---|---|---|---|"]
    for model in (*MODELS, "all"):
        mine = [row for point, row in found.items() if model in (point.model, "all")]
        if mine:
            cells = (
                errors([row for row in mine if not row.is_fitted], "equation"),
                errors(mine, "simulated"),
                errors(mine, "replayed"),
            )
            text += [f"| {model} | {len(mine)} | {' | '.join(cells)} |"]
    text += [
        "",
        "Errors: median of the absolute ones, and the largest. Those of equation (3)"
        " are of the points that it was not fitted to.",
        "",
    ]
    text += ["| model | hosts | equal layers | ours | at best possible | paper |"]
    text += ["|---|---|---|---|---|---|"]
    usual = [row for row in found.values() if is_usual(row, found)]
    for model, hosts in dict.fromkeys((r.point.model, r.point.hosts) for r in usual):
        mine = [r for r in usual if (r.point.model, r.point.hosts) == (model, hosts)]
        text.append(best_speedups(model, hosts, mine))
    text += [
        "",
        "At best possible: with the microbatches of the best in the row, if the slowest"
        " layer kept its host busy all the time, or all layers evenly all hosts, that"
        " are as fast as they were in that step.",
        "",
        "All hosts together have the same cores: each of 16 is half as fast as each of"
        " 8, and makes less of its share. With largest layers that nothing can cut, as"
        " VGG16 has, that may outweigh what more hosts gain. Of equal hosts 8 are"
        " compared with 16 by `python -m benchmarks.twice_the_hosts`"
        " ([result](../../benchmarks/results/twice_the_hosts.txt)).",
        "",
        "A host that has used its quota stops until a later period of 10 ms or more;"
        " that shows only at the next tick of the system's clock, after up to 4 ms,"
        " which a host with a tenth of a core makes up for in 40. Where phases are not"
        " much longer than that (narrow layers and many microbatches, in Fig. 9 to 11),"
        " they differ much from one another and from one step to the next.",
        *repeatability(found),
        *disturbed(found),
        *older(found),
        "",
        *targets(found),
    ]
    return text


def best_speedups(model: str, hosts: int, mine: Sequence[Row]) -> str:
    """Returns a line of the table with the best speed-up of either cut."""
    cells = [model, str(hosts)]
    for cut in (EQUAL, OURS):
        best = max(
            (r for r in mine if r.point.cut == cut),
            key=attrgetter("speedup"),
            default=None,
        )
        cells.append("" if best is None else named(best))
    best = max(mine, key=attrgetter("speedup"))
    cells.append(f"{best.speedup / best.attained:.2f}")
    printed = {"mlp": FIGURE_7, "vgg16": FIGURE_13}.get(model, {}).get(hosts)
    cells.append(f"{printed[1]:.2f} (m = {printed[0]})" if printed else "")
    return f"| {' | '.join(cells)} |"


def named(row: Row) -> str:
    """Formats a speed-up with how it was reached."""
    return f"{row.speedup:.2f} (m = {row.point.microbatches}, {row.point.schedule})"


def is_usual(row: Row, found: dict[Point, Row]) -> bool:
    """Says whether a row is of the usual links and size."""
    sizes = [p.size for p in found if p.model == row.point.model]
    usual = max(sorted(set(sizes)), key=sizes.count)
    return row.point.rate == RATE and row.point.size == usual


def errors(mine: Sequence[Row], name: str) -> str:
    """Formats the errors of a prediction, where there is one."""
    values = [(row, getattr(row, name)) for row in mine]
    found = np.abs([row.error(seconds) for row, seconds in values if seconds])
    return f"{np.median(found):.1%}, {found.max():.1%}" if len(found) else ""


def table(figure: int, mine: Sequence[Row]) -> list[str]:
    """Returns a table of Markdown with a line for each point."""
    columns = list(COLUMNS)
    if figure in (8, 9, 10, 11):
        columns[1] = "links" if figure == 8 else "width"
    text = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in mine:
        point = row.point
        second = f"{point.cut}, {point.schedule}"
        if figure in (8, 9, 10, 11):
            second = point.rate if figure == 8 else str(point.size)
        references = row.single if figure in (9, 10, 11) else row.serial
        cells = [
            str(point.hosts),
            second,
            str(point.microbatches),
            f"{row.step:.3g}{' *' if row.is_older else ''}",
            spread(references, row.seconds),
            f"{row.relative_speed:.2f}",
            with_error(row, row.equation),
            with_error(row, row.simulated),
            with_error(row, row.replayed),
            printed(figure, point),
        ]
        text.append(f"| {' | '.join(cells)} |")
    return text


def spread(above: Sequence[float], below: Sequence[float]) -> str:
    """Formats the median ratio of pairs with the range, if there are several."""
    if not above:
        return ""
    ratios = np.divide(above, below)
    found = f"{np.median(ratios):.2f}"
    several = f" ({ratios.min():.2f}..{ratios.max():.2f})" if len(ratios) > 1 else ""
    return found + several


def with_error(row: Row, seconds: list[float]) -> str:
    """Formats a prediction for each step; nothing if there is none."""
    found, error = expected(row, seconds)
    if error is None:
        return ""
    percent = f"{error:+.0%}"
    # Without the sign of a zero, which is another on another machine.
    return f"{found:.3g} ({percent if percent[1:] != '0%' else '0%'})"


def printed(figure: int, point: Point) -> str:
    """Returns what the paper prints for a point."""
    known = {6: FIGURE_7, 13: FIGURE_13}.get(figure, {}).get(point.hosts)
    if known and known[0] == point.microbatches and point.cut == EQUAL:
        return f"{known[1]:.2f}"
    return ""


def digits(value: float | None) -> str:
    """Formats a number with the digits that are the same on all machines."""
    return "" if value is None else f"{value:.6g}"


def expected(row: Row, seconds: list[float]) -> tuple[float | None, float | None]:
    """Returns a prediction and its error; nothing if there is none.

    The error is the median of the rounds, in which the machine may differ; the seconds
    are those of the median step with that error.
    """
    if not seconds:
        return None, None
    error = row.error(seconds)
    return row.step * (1 + error), error


def write_csv(path: Path, found: Iterable[Row]) -> None:
    """Writes a line for each point."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(CSV_COLUMNS)
        for row in found:
            point = row.point
            numbers = (
                row.step,
                np.median(row.serial),
                row.speedup,
                row.relative_speed,
                *expected(row, row.equation),
                *expected(row, row.simulated),
                *expected(row, row.replayed),
                row.attained,
                row.stolen,
            )
            cuts = " ".join(map(str, row.cuts))
            out.writerow([*vars(point).values(), cuts, *map(digits, numbers)])
