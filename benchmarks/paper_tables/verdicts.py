"""What to think of the tables: what chance does, what is older, what was reached."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np

from benchmarks.common.results import STOLEN
from benchmarks.paper_tables.points import OURS, Point
from benchmarks.paper_tables.rows import Row

#: How far a simulated step may be from the measured one.
TARGET_ERRORS = {"mlp": 0.10, "vgg16": 0.15, "resnet50": 0.15}
#: Over the undivided step, and of what is possible, on 8 hosts with 20 microbatches.
VGG_SPEEDUP = 3.5
VGG_PART = 0.90


def repeatability(found: dict[Point, Row]) -> list[str]:
    """Says how far apart the rounds of a point are, and what that does to errors."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for point, row in found.items():
        groups.setdefault((point.model, point.size), []).append(row)
    lines = []
    for (model, size), mine in groups.items():
        several = [row for row in mine if len(row.simulated) > 1]
        if several:
            noise = deviation(np.divide(r.simulated, r.seconds) for r in several)
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
        " deviation of one round is that of the step, and that of what was simulated,"
        " divided by the step. Between rounds of different days the machine may be"
        " another, which all points of a round have in common. The last column says how"
        " many points of the same model and size would be outside the limit below if no"
        " prediction had any other error, normally distributed.",
        "",
        "| model and size | points in several rounds | step | simulated / step"
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
        "The hypervisor of a virtual machine may give its cores to others. A step"
        f" during which that was more than {STOLEN:.0%} of the time is measured again,"
        f" a few times at most. It was more nevertheless at {most} of {len(stolen)}"
        f" points, and {max(stolen):.1%} at most.",
    ]


def older(found: dict[Point, Row]) -> list[str]:
    """Says which points were measured otherwise than they are now."""
    rows = [row for row in found.values() if row.is_older]
    if not rows:
        return []
    groups = Counter((row.point.model, row.point.size) for row in rows)
    names = [f"{n} of {model} {size}" for (model, size), n in groups.items()]
    return [
        "",
        f"Steps marked * ({', '.join(names)}) have older samples: the machine may have"
        " been needed elsewhere, most of them may have got memory from the system while"
        " they were timed, as a first step does, and a round may be of two days. Where"
        " that is so of the undivided step, the speed-up is too high. The other steps"
        " found their memory in the process, or were the fifth that did not.",
    ]


def targets(found: dict[Point, Row]) -> list[str]:
    """Says what was to be reached, of what has been measured."""
    lines = []

    def target(words: str, met: bool) -> None:
        lines.append(f"- {words}: {'met' if met else 'MISSED'}")

    for model, limit in TARGET_ERRORS.items():
        mine = [row for point, row in found.items() if point.model == model]
        for name in ("simulated", "replayed"):
            some = [row for row in mine if getattr(row, name)]
            near = [abs(row.error(getattr(row, name))) <= limit for row in some]
            words = f"{model}: {name}, within {limit:.0%} of measured at {sum(near)} of"
            words += f" {len(near)} points"
            if name == "simulated":
                inside = [good for row, good in zip(some, near) if row.is_between]
                words += f" ({sum(inside)} of {len(inside)} between two others)"
            if near:
                target(words, all(near))
    ours = [row for row in found.values() if row.point.cut == OURS]

    def best(model: str, hosts: int, microbatches: int | None = None) -> Row | None:
        mine = (
            row
            for row in ours
            if (row.point.model, row.point.hosts) == (model, hosts)
            and microbatches in (None, row.point.microbatches)
        )
        return max(mine, key=attrgetter("speedup"), default=None)

    row = best("vgg16", 8, 20)
    if row is not None:
        words = f"vgg16, 8 hosts, 20 microbatches: {row.speedup:.2f} times the serial"
        target(f"{words} step, wanted {VGG_SPEEDUP}", row.speedup >= VGG_SPEEDUP)
        words = f"vgg16, 8 hosts, 20 microbatches: {row.attained:.1%} of what the"
        words += " slowest layer allows on hosts as fast as they were in the step, with"
        words += " what its messages took"
        words += f" ({row.share_bound / row.step:.0%} if as fast as their share of a"
        words += f" core), wanted {VGG_PART:.0%}"
        target(words, row.attained >= VGG_PART)
    for model, fewer, more, factor in (("vgg16", 8, 16, 1), ("resnet50", 4, 8, 1.1)):
        a, b = best(model, fewer), best(model, more)
        if a is not None and b is not None:
            words = f"{model}: {more} hosts {b.speedup:.2f}, {fewer} hosts"
            words += f" {a.speedup:.2f}, wanted {factor} times as much at least"
            target(words, b.speedup >= factor * a.speedup)
    return lines
