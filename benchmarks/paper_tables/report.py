"""The tables: Markdown for people, CSV for programs."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from _common import STOLEN

from paper_tables import plots
from paper_tables.points import (
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
from paper_tables.rows import Row, rows
from paper_tables.samples import read

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
    "eq. (3)",
    "simulated before",
    "simulated after",
    "paper",
)

MODELS = ("mlp", "vgg16", "resnet50")
#: How far a simulated step may be from the measured one.
TARGET_ERRORS = {"mlp": 0.10, "vgg16": 0.15, "resnet50": 0.15}
#: Over the undivided step, and of what is possible, on 8 hosts with 20 microbatches.
VGG_SPEEDUP = 3.5
VGG_PART = 0.90
CSV_COLUMNS = (
    *(field.name for field in dataclasses.fields(Point)),
    "cuts",
    "step_seconds",
    "serial_seconds",
    "speedup",
    "equation_3",
    "simulated_before",
    "error_before",
    "relative_speed",
    "simulated_after",
    "error_after",
    "bound",
    "stolen",
)


def write(
    figures: dict[int, list[Point]], folder: Path, cpu: float, scale: Scale
) -> None:
    """Writes README.md, points.csv and the figures of which something was measured.

    Args:
        figures: Points by figure; one appears if it has a measured point that is not
            in those before it.
        folder: Where the samples are, and where to write.
        cpu: Of all hosts together, in cores.
        scale: Of the experiments.
    """
    every = [point for points in figures.values() for point in points]
    found = rows(folder, every, cpu)
    write_csv(folder / "points.csv", found.values())
    text = [*introduction(folder, cpu, scale), *summary(found)]
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
        "Written by `python benchmarks/paper_tables`; do not edit.",
        "",
        f"Emulated hosts with equal shares of {cpu:g} cores (at most one each), links"
        f" of 1 Gbit/s unless the table says otherwise. The perceptron has {MLP_LAYERS}"
        f" layers of width {scale.width}, for the paper's 5,000, VGG16 and ResNet50 get"
        f" images of {scale.image} x {scale.image}. The C library keeps the memory that"
        " a step frees, for the undivided step as well.",
        "",
        "- **cut**: the paper's, of equally many layers on every host, or ours: what"
        " `Plan.best` chose for the microbatches and the schedule, at most one stage on"
        " every host;",
        "- **step**: median of the measured steps, forward and backward;",
        "- **speed-up**: over the undivided model in plain Chainer on one such host,"
        " with the range of the steps;",
        "- **eq. (3)**: the paper's model, its three constants from three measured"
        " points of the same row of hosts, and its error against the measured step;",
        "- **simulated before**: from profiles of the layers on a whole core, the links"
        " and the speed of the hosts, without any step. The speed is what the hosts had"
        " right before, when all ran their layers with nothing to wait for and, if"
        " there are several microbatches, exchanged messages, in brackets relative to"
        " their share of a core: a host finds its caches cold whenever its turn comes."
        " When a host stops that has used its share of a core is simulated as the"
        " system does it: it stops less if it waits at times. A large message takes"
        " longer if its sender goes on to compute before it has left: either delay was"
        " measured, and the simulation says how often it is which;",
        "- **simulated after**: from the times of each phase in the measured step, and"
        " how long its messages took on average;",
        "- **paper**: the speed-up printed there. It prints those of the text only.",
        "",
        *[f"Measured on {machine}." for machine in machines],
        f"Load average when hosts came up: {min(loads):.1f} to {max(loads):.1f}.",
        "",
    ]


def summary(found: dict[Point, Row]) -> list[str]:
    """Says how good the predictions are, and compares the cuts."""
    text = ["## Summary", ""]
    text += ["| model | points | eq. (3) | simulated before | simulated after |"]
    text += ["|---|---|---|---|---|"]
    for model in (*MODELS, "all"):
        mine = [row for point, row in found.items() if model in (point.model, "all")]
        if mine:
            cells = (
                errors(row.error(row.equation) for row in mine if row.equation),
                errors(row.error(row.predicted) for row in mine),
                errors(row.error(row.simulated) for row in mine),
            )
            text += [f"| {model} | {len(mine)} | {' | '.join(cells)} |"]
    text += ["", "Errors: median of the absolute ones, and the largest.", ""]
    text += ["| model | hosts | equal layers | ours | at best possible | paper |"]
    text += ["|---|---|---|---|---|---|"]
    usual = [row for row in found.values() if is_usual(row, found)]
    for model, hosts in dict.fromkeys((r.point.model, r.point.hosts) for r in usual):
        mine = [r for r in usual if (r.point.model, r.point.hosts) == (model, hosts)]
        text.append(best_speedups(model, hosts, mine))
    text += [
        "",
        "At best possible: with the microbatches of the best in the row, if the slowest"
        " layer, or all layers evenly on all hosts, kept hosts of this speed busy all"
        " the time; by the profiles. The hosts' speed differs by some percent from one"
        " minute to another, so a step may seem to beat it.",
        "",
        "All hosts together have the same cores: each of 16 is half as fast as each of"
        " 8, and makes less of its share. With largest layers that nothing can cut, as"
        " VGG16 has, that may outweigh what more hosts gain. Of equal hosts 8 are"
        " compared with 16 by `benchmarks/twice_the_hosts.py`"
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


def repeatability(found: dict[Point, Row]) -> list[str]:
    """Says how far apart the rounds of a point are, and what that does to errors."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for point, row in found.items():
        groups.setdefault((point.model, point.size), []).append(row)
    lines = []
    for (model, size), mine in groups.items():
        several = [row for row in mine if len(row.seconds) > 1]
        if several:
            noise = deviation(np.divide(r.predicted, r.seconds) for r in several)
            limit = TARGET_ERRORS[model]
            outside = sum(outliers(limit, noise, len(row.seconds)) for row in mine)
            cells = (
                f"{model} {size}",
                f"{len(several)} of {len(mine)}",
                f"{deviation(row.seconds for row in several):.1%}",
                f"{noise:.1%}",
                f"{outside:.1f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return []
    return [
        "",
        "Points that were measured in several rounds say what chance does: the standard"
        " deviation of one round is that of the step, and that of what was simulated"
        " before it, divided by the step. The last column says how many of all points"
        " of the same model and size would be outside the limit below if no prediction"
        " had any other error, normally distributed.",
        "",
        "| model and size | points in several rounds | step | simulated before / step"
        " | outside by chance |",
        "|---|---|---|---|---|",
        *lines,
    ]


def deviation(groups: Iterable[Sequence[float]]) -> float:
    """Returns the standard deviation within groups, relative to their means."""
    relative = [np.divide(group, np.mean(group)) - 1 for group in groups]
    squares = sum(float(np.sum(group**2)) for group in relative)
    return math.sqrt(squares / sum(len(group) - 1 for group in relative))


def outliers(limit: float, noise: float, n_rounds: int) -> float:
    """Returns how probable it is that chance makes a mean miss a limit."""
    return math.erfc(limit / noise * math.sqrt(n_rounds / 2)) if noise else 0.0


def disturbed(found: dict[Point, Row]) -> list[str]:
    """Says how much of the machine was needed elsewhere."""
    stolen = [row.stolen for row in found.values() if row.stolen is not None]
    if not stolen:
        return []
    most = sum(part > STOLEN for part in stolen)
    return [
        "",
        "The hypervisor of a virtual machine may give its cores to others. A step, or"
        f" what is measured before it, during which that was more than {STOLEN:.0%} of"
        " the time is measured again, a few times at most. It was more nevertheless at"
        f" {most} of {len(stolen)} points, and {max(stolen):.1%} at most.",
    ]


def older(found: dict[Point, Row]) -> list[str]:
    """Says which points were measured otherwise than they are now."""
    rows = [row for row in found.values() if row.stolen is None]
    if not rows:
        return []
    groups = Counter((row.point.model, row.point.size) for row in rows)
    names = [f"{n} of {model} {size}" for (model, size), n in groups.items()]
    n_other = sum(not row.is_probe_whole for row in found.values())
    return [
        "",
        f"Samples of {len(rows)} points ({', '.join(names)}) are older: the machine may"
        " have been needed elsewhere, and at most of them the step may have got memory"
        " from the system while it was timed, as a first step does, and the hosts'"
        " speed was measured with smaller microbatches than the step has, or once for a"
        " whole row of hosts. Where that is so of the undivided step, the speed-up is"
        " too high. The other points are of steps that found their memory in the"
        f" process. At {n_other} points less was measured before the step: the speed"
        " for 4 s and not for 15, without messages; and messages between the first two"
        " hosts only, whose senders waited, or on all links, but while senders"
        " computed. With few microbatches on many hosts those are later than in the"
        " step. Some counted for which buffers got memory from the system, which takes"
        " a host with a small part of a core long.",
    ]


def best_speedups(model: str, hosts: int, mine: Sequence[Row]) -> str:
    """Returns a line of the table with the best speed-up of either cut."""
    cells = [model, str(hosts)]
    for cut in (EQUAL, OURS):
        best = max((r for r in mine if r.point.cut == cut), key=speedup, default=None)
        cells.append("" if best is None else named(best))
    best = max(mine, key=speedup)
    cells.append(f"{np.median(best.serial) / best.bound:.2f}")
    printed = {"mlp": FIGURE_7, "vgg16": FIGURE_13}.get(model, {}).get(hosts)
    cells.append(f"{printed[1]:.2f} (m = {printed[0]})" if printed else "")
    return f"| {' | '.join(cells)} |"


def targets(found: dict[Point, Row]) -> list[str]:
    """Says what was to be reached, of what has been measured."""
    lines = []

    def target(words: str, met: bool) -> None:
        lines.append(f"- {words}: {'met' if met else 'MISSED'}")

    for model, limit in TARGET_ERRORS.items():
        mine = [row for point, row in found.items() if point.model == model]
        for when, name in (("before", "predicted"), ("after", "simulated")):
            near = [abs(row.error(getattr(row, name))) <= limit for row in mine]
            words = f"{model}: simulated {when}, within {limit:.0%} of measured at"
            if mine:
                target(f"{words} {sum(near)} of {len(mine)} points", all(near))
    ours = [row for row in found.values() if row.point.cut == OURS]

    def best(model: str, hosts: int, microbatches: int | None = None) -> Row | None:
        mine = (
            row
            for row in ours
            if (row.point.model, row.point.hosts) == (model, hosts)
            and microbatches in (None, row.point.microbatches)
        )
        return max(mine, key=speedup, default=None)

    row = best("vgg16", 8, 20)
    if row is not None:
        words = f"vgg16, 8 hosts, 20 microbatches: {row.speedup:.2f} times the serial"
        target(f"{words} step, wanted {VGG_SPEEDUP}", row.speedup >= VGG_SPEEDUP)
        part = row.bound / row.step
        words = f"vgg16, 8 hosts, 20 microbatches: {part:.0%} of what the slowest layer"
        words += f" allows on hosts of this speed ({part * row.relative_speed:.0%} on"
        words += f" hosts as fast as their share of a core), wanted {VGG_PART:.0%}"
        target(words, part >= VGG_PART)
    for model, fewer, more, factor in (("vgg16", 8, 16, 1), ("resnet50", 4, 8, 1.1)):
        a, b = best(model, fewer), best(model, more)
        if a is not None and b is not None:
            words = f"{model}: {more} hosts {b.speedup:.2f}, {fewer} hosts"
            words += f" {a.speedup:.2f}, wanted {factor} times as much at least"
            target(words, b.speedup >= factor * a.speedup)
    return lines


def speedup(row: Row) -> float:
    """Returns what to compare rows by."""
    return row.speedup


def named(row: Row) -> str:
    """Formats a speed-up with how it was reached."""
    return f"{row.speedup:.2f} (m = {row.point.microbatches}, {row.point.schedule})"


def is_usual(row: Row, found: dict[Point, Row]) -> bool:
    """Says whether a row is of the usual links and size."""
    sizes = [p.size for p in found if p.model == row.point.model]
    usual = max(sorted(set(sizes)), key=sizes.count)
    return row.point.rate == RATE and row.point.size == usual


def errors(values: Iterable[float]) -> str:
    """Formats errors."""
    found = np.abs(list(values))
    return f"{np.median(found):.1%}, {found.max():.1%}" if len(found) else ""


def table(figure: int, mine: Sequence[Row]) -> list[str]:
    """Returns a table of Markdown with a line for each point."""
    columns = list(COLUMNS)
    if figure in (8, 9, 10, 11):
        columns[1] = "links" if figure == 8 else "width"
    text = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    base = {row.point.series: row for row in mine if row.point.microbatches == 1}
    for row in mine:
        point = row.point
        second = f"{point.cut}, {point.schedule}"
        if figure in (8, 9, 10, 11):
            second = point.rate if figure == 8 else str(point.size)
        references = row.serial
        if figure in (9, 10, 11):
            references = base[point.series].seconds if point.series in base else []
        cells = [
            str(point.hosts),
            second,
            str(point.microbatches),
            f"{row.step:.3g}",
            spread(references, row.seconds),
            with_error(row, row.equation),
            f"{with_error(row, row.predicted)} [{row.relative_speed:.2f}]",
            with_error(row, row.simulated),
            printed(figure, point),
        ]
        text.append(f"| {' | '.join(cells)} |")
    return text


def spread(above: Sequence[float], below: Sequence[float]) -> str:
    """Formats a ratio of medians with its range."""
    if not above:
        return ""
    ratio = np.median(above) / np.median(below)
    least, most = min(above) / max(below), max(above) / min(below)
    return f"{ratio:.2f} ({least:.2f}..{most:.2f})"


def with_error(row: Row, seconds: float | list[float] | None) -> str:
    """Formats a prediction."""
    if seconds is None:
        return ""
    return f"{np.median(seconds):.3g} ({row.error(seconds):+.0%})"


def printed(figure: int, point: Point) -> str:
    """Returns what the paper prints for a point."""
    known = {6: FIGURE_7, 13: FIGURE_13}.get(figure, {}).get(point.hosts)
    if known and known[0] == point.microbatches and point.cut == EQUAL:
        return f"{known[1]:.2f}"
    return ""


def write_csv(path: Path, found: Iterable[Row]) -> None:
    """Writes a line for each point."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(CSV_COLUMNS)
        for row in found:
            point = row.point
            out.writerow(
                [
                    *vars(point).values(),
                    " ".join(map(str, row.cuts)),
                    row.step,
                    float(np.median(row.serial)),
                    row.speedup,
                    "" if row.equation is None else row.equation,
                    float(np.median(row.predicted)),
                    row.error(row.predicted),
                    row.relative_speed,
                    float(np.median(row.simulated)),
                    row.error(row.simulated),
                    row.bound,
                    "" if row.stolen is None else row.stolen,
                ]
            )
