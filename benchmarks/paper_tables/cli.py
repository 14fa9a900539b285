"""The command: makes missing measurements, then writes the tables."""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common.hosts import (
    HostsFailedError,
    add_hosts_arguments,
    keep_freed_memory,
    prepare,
    run,
)
from benchmarks.common.results import ROOT
from benchmarks.paper_tables.models import cuts
from benchmarks.paper_tables.points import (
    BATCH,
    DATA,
    SAMPLES,
    Point,
    Scale,
    figures,
    quick,
    to_json,
    with_serial,
)
from benchmarks.paper_tables.profiles import DEADLINE, WORK, profiles_of
from benchmarks.paper_tables.samples import read

#: Where the page is, with its figures.
PAGE = ROOT / "docs" / "paper_tables"
#: Core seconds that an undivided step takes, about: for the estimate only.
CORE_SECONDS = {"mlp": 2.0e-6, "vgg16": 4.3, "resnet50": 16.0}


def main() -> None:
    """Runs the command, or on a host its part of the work."""
    arguments = parse()
    scale = Scale(arguments.width, arguments.image, arguments.batch)
    every = figures(scale)
    if arguments.write:
        write_page(arguments, every, scale)
        return
    rounds = 1 if arguments.quick else arguments.rounds
    points = itertools.chain.from_iterable(every[n] for n in arguments.figures)
    points = [
        point
        for point in dict.fromkeys(points)
        if point.hosts in (arguments.hosts or [point.hosts])
        and point.size in (arguments.sizes or [point.size])
    ]
    points = with_serial(quick(points) if arguments.quick else points)
    todo = missing_rounds(arguments.data / SAMPLES, points, rounds)
    seconds = sum(estimate(point, arguments.cpu) for point, _ in todo)
    print(f"{len(todo)} of {len(points) * rounds} steps to measure,", end=" ")
    print(f"{seconds / 60:.0f} minutes at least, besides what comes first:", end=" ")
    print("profiles, and steps that get memory", flush=True)
    if arguments.list:
        return
    failed: list[str] = []
    if todo:
        prepare()
        keep_freed_memory()
        arguments.data.mkdir(parents=True, exist_ok=True)
        failed = measure(arguments, todo)
    write_page(arguments, every, scale)
    if failed:
        sys.exit("not measured, run again for these:\n" + "\n".join(failed))


def write_page(
    arguments: argparse.Namespace, every: dict[int, list[Point]], scale: Scale
) -> None:
    """Writes the measurements so far."""
    # Here, because matplotlib is not needed to measure.
    from benchmarks.paper_tables.page import write

    write(every, arguments.data, arguments.page, arguments.cpu, scale)


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper_tables",
        description="Measures figures 6 to 14 of the paper on emulated hosts. What is"
        " measured is kept at once, so a run that was stopped goes on where it was.",
    )
    add = parser.add_argument
    add_hosts_arguments(parser)
    add(
        "--figures",
        type=int,
        nargs="+",
        default=[6, 8, 9, 10, 11, 13, 14],
        choices=[6, 8, 9, 10, 11, 13, 14],
        metavar="N",
        help="of 6, 8, 9, 10, 11, 13, 14; Fig. 7 and 12 come with 6",
    )
    add("--hosts", type=int, nargs="+", metavar="N", help="only on so many")
    add("--sizes", type=int, nargs="+", metavar="N", help="only such widths or images")
    add("--quick", action="store_true", help="some points, one step each")
    add("--list", action="store_true", help="only say how much there is to measure")
    add("--write", action="store_true", help="only write what was measured so far")
    add("--width", type=int, default=2048, help="of the perceptron; paper: 5000")
    add("--image", type=int, default=32, help="pixels on a side")
    add("--batch", type=int, help="samples, to try it out; paper: 1200, 84, 90")
    add("--rounds", type=int, default=2, help="steps of each point; paper: 10")
    add("--output", type=Path, help="folder, in place of docs/paper_tables and data")
    arguments = parser.parse_args()
    arguments.data = DATA if arguments.output is None else arguments.output / "data"
    arguments.page = arguments.output or PAGE
    return arguments


def missing_rounds(
    file: Path, points: list[Point], rounds: int
) -> list[tuple[Point, int]]:
    """Returns points and rounds that were not measured, the points in turn."""
    done = {
        point: {sample.round for sample in samples}
        for point, samples in read(file).items()
    }
    return [
        (point, number)
        for number in range(rounds)
        for point in points
        if number not in done.get(point, ())
    ]


def estimate(point: Point, cpu: float) -> float:
    """Estimates the seconds of a step: equation (2) on the hosts' shares of a core."""
    seconds = CORE_SECONDS[point.model] * point.batch / BATCH[point.model]
    seconds *= (point.size**2) if point.model == "mlp" else (point.size / 32) ** 2
    d, m = point.hosts, point.microbatches
    turns = d if point.schedule == "serial" else (m + d - 1) / m
    return seconds / (point.on(cpu).share * d) * turns


def measure(arguments: argparse.Namespace, todo: list[tuple[Point, int]]) -> list[str]:
    """Brings the hosts of one group after the other up and measures on them.

    Args:
        arguments: Arguments of the command line.
        todo: Points and rounds.

    Returns:
        Texts of failures; later groups are measured nevertheless.
    """
    # All rounds of a point are cut alike, whatever is chosen now.
    samples_before = read(arguments.data / SAMPLES).items()
    kept = {point: each[-1].cuts for point, each in samples_before}
    points = {point.group: point for point, _ in todo}
    failed = []
    for group, point in points.items():
        entries = [entry for entry in todo if entry[0].group == group]
        hosts = point.on(arguments.cpu)
        try:
            profiles = profiles_of(arguments.data, point)
            words = []
            for each, number in entries:
                if each not in kept:
                    kept[each] = cuts(each, profiles, hosts)
                words.append(
                    {"point": to_json(each), "round": number, "cuts": kept[each]}
                )
            print(f"{time.strftime('%H:%M')} {group}: {len(words)} steps", flush=True)
            job = {
                "task": "steps",
                "todo": words,
                "file": str((arguments.data / SAMPLES).resolve()),
            }
            run(hosts, WORK, job, DEADLINE)
        except (HostsFailedError, subprocess.TimeoutExpired) as error:
            failed.append(f"{group}: {error}")
            print(failed[-1], flush=True)
    return failed
