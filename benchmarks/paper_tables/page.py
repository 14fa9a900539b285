"""The page: tables, findings and figures of all campaigns; and all points as CSV."""

from __future__ import annotations

import csv
import dataclasses
import os
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from benchmarks.paper_tables import plots
from benchmarks.paper_tables.campaigns import Campaign, campaigns_of, usual
from benchmarks.paper_tables.points import (
    DATA,
    EQUAL,
    FIG4,
    MLP_LAYERS,
    OURS,
    PRINTED,
    SAMPLES,
    Point,
    Scale,
)
from benchmarks.paper_tables.rows import Row
from benchmarks.paper_tables.samples import merge

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
    "rounds",
    "cuts",
    "step_seconds",
    "serial_seconds",
    "speedup",
    "equation_3",
    "error_of_equation_3",
    "stolen",
)


def write(data: Path, folder: Path, scale: Scale) -> None:
    """Writes the page, points.csv and the figures that have measured points.

    Args:
        data: Folder of the samples, and of points.csv.
        folder: Folder of the page and its figures.
        scale: Sizes of the experiments.
    """
    campaigns = campaigns_of(data, scale)
    folder.mkdir(parents=True, exist_ok=True)
    found = [row for campaign in campaigns for row in campaign.rows.values()]
    write_csv(data / "points.csv", found)
    every = os.path.relpath(data / "points.csv", folder)
    text = introduction(scale, every)
    for campaign in campaigns:
        text += [*described(campaign), *best_speedups(campaign), *remarks(campaign)]
    for figure, title in TITLES.items():
        drawn = [line for each in campaigns for line in drawing(each, figure, folder)]
        if drawn:
            text += ["", f"## {title}", "", PAPER[figure], "", *drawn]
    path = folder / "README.md"
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    print(f"{len(found)} points in {path} and {data / 'points.csv'}", flush=True)


def publish(data: Path, folder: Path) -> None:
    """Adds samples to the repository's, and writes its page from all of them.

    Args:
        data: Folder of the samples. They replace the repository's of the same points.
        folder: Folder of the page.
    """
    merge(DATA / SAMPLES, data / SAMPLES)
    write(DATA, folder, Scale())


def drawing(campaign: Campaign, figure: int, folder: Path) -> list[str]:
    """Draws a figure of a campaign, unless earlier figures have all its points.

    Returns:
        Lines that show the files.
    """
    points = dict.fromkeys(campaign.figures[figure])
    earlier = (p for n in campaign.figures if n < figure for p in campaign.figures[n])
    mine = [campaign.rows[point] for point in points if point in campaign.rows]
    if {row.point for row in mine} <= set(earlier):
        return []
    names = plots.draw(figure, mine, folder, campaign.name)
    return [
        f"![Fig. {number}, {campaign.title}]({name})" for number, name in names.items()
    ]


def introduction(scale: Scale, every: str) -> list[str]:
    """Returns a text on the experiments."""
    return [
        "# The paper's figures 6 to 14, measured again",
        "",
        "Written by `python -m benchmarks.paper_tables`; do not edit. Every point is in"
        f" [points.csv]({every}).",
        "",
        "Emulated hosts have equal shares of 1.6 cores (at most one each) and links of"
        " 1 Gbit/s, unless the command or the figure says otherwise. The perceptron has"
        f" {MLP_LAYERS} layers of width {scale.width}, for the paper's 5,000. VGG16 and"
        f" ResNet50 get images of {scale.image} x {scale.image}; the paper names no"
        " image size. The speed-up of a step is over the undivided step in plain"
        " Chainer with the same arithmetic, on one such host in the same round; with"
        " several rounds it is their median. The C library keeps the memory that a step"
        " frees, for the undivided step as well.",
        "",
        "All hosts together have the same cores, so each of 16 is half as fast as each"
        " of 8. Compare speed-ups, not seconds, between numbers of hosts: they were"
        " measured at different times.",
        "",
        "The ways to train: *as in the paper* is the loop of Fig. 4 over ChainerMN, all"
        " forwards and then all backwards with blocking messages, followed by"
        " `optimizer.update()`; equally many layers are on every host. *Equal layers,"
        " 1F1B* has the same cut, with 1F1B on this project's transport. *Best plan* is"
        " what `best_plan` cut for the microbatches and the schedule, with at most one"
        " stage on every host. By equation (3) is the paper's model of the step of"
        " equal layers with 1F1B, with its three constants from three measured steps of"
        " the same hosts, cut, schedule and round. (fitted) marks one of these three,"
        " which is not a prediction.",
    ]


def described(campaign: Campaign) -> list[str]:
    """Returns a text on a campaign."""
    loads = [sample.load for each in campaign.samples.values() for sample in each]
    step = "forward, backward and update" if campaign.has_update else "forward and"
    step += "" if campaign.has_update else " backward, without the update"
    title = campaign.title
    return [
        "",
        f"**{title[0].upper()}{title[1:]}.** A step is {step}.",
        "",
        *campaign.machines(),
        f"Load average when hosts came up: {min(loads):.1f} to {max(loads):.1f}.",
        "",
    ]


def best_speedups(campaign: Campaign) -> list[str]:
    """Returns the table of the best speed-up of each way, of usual size and links."""
    ways = {
        "as in the paper": lambda point: point.schedule == FIG4,
        "equal layers, 1F1B": lambda p: p.cut == EQUAL and p.schedule != FIG4,
        "best plan": lambda point: point.cut == OURS,
    }
    models = dict.fromkeys(row.point.model for row in campaign.rows.values())
    text = []
    for model in models:
        of_model = usual(campaign.rows, model)
        for hosts in dict.fromkeys(row.point.hosts for row in of_model):
            mine = [row for row in of_model if row.point.hosts == hosts]
            found = {
                way: best([row for row in mine if is_of(row.point)])
                for way, is_of in ways.items()
            }
            printed = PRINTED.get(model, {}).get(hosts)
            rounds = sorted({len(row.seconds) for row in mine})
            cells = [
                model,
                str(hosts),
                *(named(row) for row in found.values()),
                predicted(found["equal layers, 1F1B"]),
                f"{printed[1]:.2f} (m = {printed[0]})" if printed else "",
                " to ".join(map(str, sorted({rounds[0], rounds[-1]}))),
            ]
            text.append(f"| {' | '.join(cells)} |")
    columns = ["model", "hosts", *ways, "by equation (3)", "printed in the paper"]
    columns.append("rounds a point")
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *text]


def best(mine: Sequence[Row]) -> Row | None:
    """Returns the row with the greatest speed-up, if there are any."""
    return max(mine, key=attrgetter("speedup"), default=None)


def named(row: Row | None) -> str:
    """Formats a speed-up with how it was reached."""
    if row is None:
        return ""
    microbatches = f"m = {row.point.microbatches}"
    if row.point.turns != row.point.microbatches:
        microbatches += f", in fact {row.point.turns}"
    way = f", {row.point.schedule}" if row.point.cut == OURS else ""
    return f"{row.speedup:.2f} ({microbatches}{way})"


def predicted(row: Row | None) -> str:
    """Formats the speed-up by equation (3), if there is one."""
    if row is None or not row.equation:
        return ""
    return f"{row.speedup_by_equation:.2f}{' (fitted)' if row.is_fitted else ''}"


def remarks(campaign: Campaign) -> list[str]:
    """Returns remarks on the numbers of a campaign."""
    found = campaign.rows.values()
    text = [
        "",
        "The best of the numbers m of microbatches that were measured: "
        + "; ".join(
            f"{model} {', '.join(map(str, sorted(numbers)))}"
            for model, numbers in microbatches_of(found).items()
        )
        + ".",
    ]
    errors = np.abs([row.error_of_equation for row in found if not row.is_fitted])
    errors = errors[~np.isnan(errors)]
    if errors.size:
        text[-1] += (
            f" At the {errors.size} points that equation (3) was not fitted to it is"
            f" off by {np.median(errors):.1%} in the median, by {errors.max():.1%} at"
            " most."
        )
    uneven = {
        f"the {p.batch} samples of {p.model} in {p.turns} microbatches, not"
        f" {p.microbatches}"
        for p in (row.point for row in found)
        if p.turns != p.microbatches
    }
    if uneven:
        text += [
            "",
            "Fig. 4 cuts a minibatch into microbatches of equal size, rounded up, and a"
            f" smaller last one. So it runs {'; '.join(sorted(uneven))}.",
        ]
    shared = [row for row in found if row.is_scaled]
    if shared:
        text += [
            "",
            f"For {len(shared)} points the undivided step was measured on a host with a"
            " larger share of a core, and its seconds are multiplied by the ratio of"
            " the shares.",
        ]
    older = [row.point for row in found if row.is_older]
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


def microbatches_of(found: Iterable[Row]) -> dict[str, set[int]]:
    """Returns the numbers of microbatches that were measured of each model."""
    numbers: dict[str, set[int]] = {}
    for row in found:
        numbers.setdefault(row.point.model, set()).add(row.point.microbatches)
    return numbers


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
            out.writerow(
                [
                    *vars(row.point).values(),
                    len(row.seconds),
                    cuts,
                    *map(digits, numbers),
                ]
            )


def digits(value: float) -> str:
    """Formats a number with the digits that are the same on all machines."""
    # Rounding removes remainders of zero, and adding 0.0 its sign.
    return "" if np.isnan(value) else f"{round(value, 9) + 0.0:.6g}"
