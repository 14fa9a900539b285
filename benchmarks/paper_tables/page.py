"""The page: tables, findings and figures of all campaigns; and all points as CSV."""

from __future__ import annotations

import csv
import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.common.hosts import CPU
from benchmarks.paper_tables import findings, plots
from benchmarks.paper_tables.campaigns import Campaign, campaigns_of
from benchmarks.paper_tables.points import (
    DATA,
    LEARNING_RATE,
    MLP_LAYERS,
    SAMPLES,
    Point,
    Scale,
)
from benchmarks.paper_tables.rows import Row
from benchmarks.paper_tables.samples import merge
from benchmarks.paper_tables.tables import best_speedups, remarks

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
    "baseline",
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
    n_points = write_csv(data / "points.csv", campaigns)
    every = os.path.relpath(data / "points.csv", folder)
    text = introduction(scale, every)
    for campaign in campaigns:
        text += [*described(campaign), *best_speedups(campaign), *remarks(campaign)]
    text += findings.section(campaigns)
    for figure, title in TITLES.items():
        drawn = [line for each in campaigns for line in drawing(each, figure, folder)]
        if drawn:
            text += ["", f"## {title}", "", PAPER[figure], "", *drawn]
    path = folder / "README.md"
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    print(f"{n_points} points in {path} and {data / 'points.csv'}", flush=True)


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
        f"Emulated hosts have equal shares of {CPU:g} cores (at most one each) and"
        " links of 1 Gbit/s, unless the command or the figure says otherwise. The"
        f" perceptron has {MLP_LAYERS} layers of width {scale.width}, for the paper's"
        " 5,000. VGG16 and ResNet50 get images of"
        f" {scale.image} x {scale.image}; the paper names no"
        " image size. The paper names no optimizer. The update is that of SGD with a"
        f" learning rate of {LEARNING_RATE:g}, which keeps the parameters finite. The"
        " speed-up of a step is over the undivided step in plain"
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
        " `optimizer.update()`; equally many layers are on every host. A blocking"
        " receive of MPICH polls, which uses the host's share of a core. *Equal layers,"
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


def write_csv(path: Path, campaigns: Iterable[Campaign]) -> int:
    """Writes a line for each point, and returns their number."""
    n_points = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(CSV_COLUMNS)
        for campaign in campaigns:
            for row in campaign.rows.values():
                cells = "yes" if campaign.is_baseline else "no", len(row.seconds)
                out.writerow([*vars(row.point).values(), *cells, *_results(row)])
                n_points += 1
    return n_points


def _results(row: Row) -> list[str]:
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
    return [" ".join(map(str, row.cuts)), *map(digits, numbers)]


def digits(value: float) -> str:
    """Formats a number with the digits that are the same on all machines."""
    # Rounding removes remainders of zero, and adding 0.0 its sign.
    return "" if np.isnan(value) else f"{round(value, 9) + 0.0:.6g}"
