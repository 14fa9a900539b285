"""Findings of the paper's sections 7 and 8, on VGG16 and ResNet50."""

from __future__ import annotations

from functools import partial

import chainer

from benchmarks.paper_tables.claim import (
    TOLERANCE,
    Claim,
    Measured,
    Result,
    are_close,
    ideal,
    listed,
)
from benchmarks.paper_tables.models import build
from benchmarks.paper_tables.points import BEST_PLAN, EQUAL_LAYERS, PRINTED
from benchmarks.paper_tables.rows import Row

VGG16, RESNET50 = "vgg16", "resnet50"
#: The processes from which both sections compare, and the least speed-up of VGG16.
FROM, LEAST = 4, 1.5
#: The processes that are slower in Fig. 13.
MANY = 16


def best_of(measured: Measured, model: str) -> dict[int, Row]:
    """Returns the fastest row of each number of hosts, in the paper's way."""
    found = measured.usual(model).in_the_papers_way().by("hosts")
    return {n: each.fastest for n, each in found.items() if n >= FROM}


def of_equal_stages(rows: dict[int, Row]) -> str:
    """Compares the speed-ups with those of stages that take equally long."""
    parts = (row.speedup / ideal(n, row.point.turns) for n, row in rows.items())
    return f"{listed(parts, '.0%')} of what equation (2) allows with equal stages"


def least_speedup(measured: Measured) -> Result | None:
    """VGG16 from four processes on."""
    rows = best_of(measured, VGG16)
    if not rows:
        return None
    here = [row.speedup for row in rows.values()]
    return Result(
        f"{listed(here)} on {listed(rows, 'd')}",
        min(here) >= LEAST,
        of_equal_stages(rows),
    )


def printed_speedup(measured: Measured) -> Result | None:
    """The number that the paper has for VGG16."""
    ((hosts, (m, printed)),) = PRINTED[VGG16].items()
    usual = measured.usual(VGG16).of(hosts=hosts, microbatches=m)
    found = usual.in_the_papers_way()
    if not found:
        return None
    row = found.fastest
    others = [
        f"; {way}: {each.fastest.speedup:.2f}"
        for way, each in usual.by("way").items()
        if way != row.point.way
    ]
    return Result(
        f"{row.speedup:.2f} in {row.point.turns} microbatches",
        are_close([row.speedup], [printed]),
        f"{row.speedup / printed - 1:+.0%}; {of_equal_stages({hosts: row})}, in the"
        f" paper {printed / ideal(hosts, row.point.turns):.0%}{''.join(others)}",
    )


def many_hosts(measured: Measured) -> Result | None:
    """VGG16 on sixteen processes."""
    rows = best_of(measured, VGG16)
    if MANY not in rows or len(rows) < 2:
        return None
    most = rows[MANY]
    model = build(most.point)
    stages = [model[start:end] for start, end in zip(most.cuts, most.cuts[1:])]
    empty = sum(not any(isinstance(e, chainer.Link) for e in stage) for stage in stages)
    others = [row.speedup for n, row in rows.items() if n != MANY]
    return Result(
        f"{listed(row.speedup for row in rows.values())} on {listed(rows, 'd')}",
        most.speedup < min(others),
        f"{empty} of {len(stages)} stages have no parameters; {of_equal_stages(rows)}",
    )


def no_difference(measured: Measured) -> Result | None:
    """ResNet50 from four processes on."""
    rows = best_of(measured, RESNET50)
    if len(rows) < 2:
        return None
    here = [row.speedup for row in rows.values()]
    return Result(
        f"{listed(here)} on {listed(rows, 'd')}",
        max(here) / min(here) <= 1 + TOLERANCE,
        of_equal_stages(rows),
    )


def equal_times(measured: Measured, model: str) -> Result | None:
    """Stages that take equally long."""
    usual = measured.usual(model)
    equal, planned = (
        {n: each.fastest for n, each in usual.of(way=way).by("hosts").items()}
        for way in (EQUAL_LAYERS, BEST_PLAN)
    )
    hosts = [n for n in equal if n in planned]
    if not hosts:
        return None
    parts = [planned[n].speedup / equal[n].speedup for n in hosts]
    return Result(
        f"{listed(parts)} times as fast as equal layers on {listed(hosts, 'd')}",
        min(parts) > 1,
        f"best plans: {of_equal_stages({n: planned[n] for n in hosts})}; equal layers:"
        f" {listed(equal[n].speedup / ideal(n, equal[n].point.turns) for n in hosts)}",
    )


CLAIMS = (
    Claim(
        "7, Fig. 13",
        f"VGG16 is {LEAST} times as fast or more from {FROM} processes on, at best",
        f"{LEAST} at least",
        least_speedup,
    ),
    Claim(
        "7, Fig. 13",
        "VGG16 on 8 processes with 20 microbatches",
        f"{PRINTED[VGG16][8][1]:.2f}",
        printed_speedup,
    ),
    Claim(
        "7, Fig. 13",
        f"VGG16 on {MANY} processes is slower than on 8 or 4, for some have only layers"
        " without parameters",
        "no number",
        many_hosts,
    ),
    Claim(
        "7, Fig. 14",
        f"ResNet50 makes no clear difference from {FROM} processes on",
        "no number",
        no_difference,
    ),
    *(
        Claim(
            "8",
            f"{name} with stages that take equally long is faster",
            "expected, not measured",
            partial(equal_times, model=model),
        )
        for name, model in (("VGG16", VGG16), ("ResNet50", RESNET50))
    ),
)
