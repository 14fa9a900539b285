"""The command: makes missing measurements, then writes the page."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.hosts import CPU, add_hosts_arguments, keep_freed_memory, prepare
from benchmarks.common.results import ROOT
from benchmarks.paper_tables.arithmetic import OFF, ON, Arithmetic, on_this_machine
from benchmarks.paper_tables.durations import seconds_of
from benchmarks.paper_tables.measuring import measure, missing_rounds
from benchmarks.paper_tables.points import (
    SAMPLES,
    Point,
    Scale,
    figures,
    quick,
    with_serial,
)
from benchmarks.paper_tables.samples import read

#: The published page, and the folder for what is measured here.
PAGE, OUTPUT = ROOT / "docs" / "paper_tables", ROOT / "build" / "paper_tables"
FIGURES, QUICK_FIGURES = (6, 8, 9, 10, 11, 13, 14), (13, 14)
ROUNDS, QUICK_ROUNDS = 2, 1


def main() -> None:
    """Runs the command."""
    arguments = parse()
    if not (arguments.write or arguments.publish):
        points = chosen(arguments)
        todo = missing_rounds(read(arguments.data / SAMPLES), points, arguments.rounds)
        seconds = sum(seconds_of(todo, arguments.cpu, arguments.quick))
        print(
            f"{len(todo)} of {len(points) * arguments.rounds} samples to measure, in"
            f" about {seconds / 60:.0f} minutes",
            flush=True,
        )
        if arguments.list:
            return
        failed = []
        if todo:
            prepare()
            keep_freed_memory()
            arguments.data.mkdir(parents=True, exist_ok=True)
            try:
                failed = measure(arguments.data, todo, arguments.cpu, arguments.quick)
            except KeyboardInterrupt:
                sys.exit("stopped: the same command measures the rest")
        if failed:
            sys.exit("not measured, run again for these:\n" + "\n".join(failed))
    # Here, because matplotlib is not needed to measure.
    from benchmarks.paper_tables.page import publish, write

    if arguments.publish:
        publish(arguments.data, PAGE)
    else:
        write(arguments.data, arguments.output, scale_of(arguments, Arithmetic()))


def chosen(arguments: argparse.Namespace) -> list[Point]:
    """Returns the points that the command line asks for."""
    found: list[Point] = []
    for kernels in arguments.kernels:
        scale = scale_of(arguments, on_this_machine(kernels))
        every = figures(scale)
        points = itertools.chain.from_iterable(every[n] for n in arguments.figures)
        points = [
            point
            for point in dict.fromkeys(points)
            if point.hosts in (arguments.hosts or [point.hosts])
            and point.size in (arguments.sizes or [point.size])
            and point.microbatches in (arguments.microbatches or [point.microbatches])
        ]
        points = quick(points) if arguments.quick else points
        found += with_serial(points, few=arguments.quick)
    return found


def how_long() -> str:
    """Returns a text on how long each part takes."""
    scale = Scale(arithmetic=Arithmetic(ON), update=True)
    every = figures(scale)

    def minutes(numbers: Sequence[int], is_quick: bool) -> str:
        points = list(itertools.chain.from_iterable(every[n] for n in numbers))
        points = with_serial(quick(points) if is_quick else points, few=is_quick)
        rounds = QUICK_ROUNDS if is_quick else ROUNDS
        todo = missing_rounds({}, points, rounds)
        return f"{sum(seconds_of(todo, CPU, is_quick)) / 60:.0f}"

    parts = ((6,), (8,), (9, 10, 11), (13,), (14,))
    each = (f"{' '.join(map(str, part))}: {minutes(part, False)}" for part in parts)
    return (
        "About how many minutes the parts take by estimation, on two cores with kernels"
        f" on: --quick: {minutes(QUICK_FIGURES, True)}; without it --figures"
        f" {'; '.join(each)}; all of them: {minutes(FIGURES, False)}. Hosts share"
        f" {CPU:g} cores, so that a step of all hosts takes the core seconds of the"
        " model, divided by these cores and by what the pipeline's fill and its slowest"
        " stage leave of them. --list prints the minutes of what is missing. While it"
        " runs, the command prints those that are left."
    )


def scale_of(arguments: argparse.Namespace, arithmetic: Arithmetic) -> Scale:
    """Returns the sizes of the experiments, whose steps have the update."""
    return Scale(
        *(arguments.width, arguments.image, arguments.batch),
        arithmetic=arithmetic,
        update=True,
    )


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line, and replaces defaults that depend on each other."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper_tables",
        description="Measures figures 6 to 14 of the paper on emulated hosts. Each"
        " sample is kept at once, so that a run that was stopped goes on where it was."
        " Samples of others, which the repository has, are a baseline on the page.",
        epilog=how_long(),
    )
    add = parser.add_argument
    add_hosts_arguments(parser)
    add(
        "--figures",
        type=int,
        nargs="+",
        choices=FIGURES,
        metavar="N",
        help="of 6, 8, 9, 10, 11, 13, 14; Fig. 7 and 12 come with 6; all of them by"
        " default, 13 and 14 with --quick",
    )
    add(
        "--kernels",
        nargs="+",
        choices=(OFF, ON),
        default=[ON],
        help="with chainer_kernels in force, or with Chainer's own arithmetic, or both",
    )
    add("--hosts", type=int, nargs="+", metavar="N", help="only on so many")
    add("--sizes", type=int, nargs="+", metavar="N", help="only such widths or images")
    add("--microbatches", type=int, nargs="+", metavar="N", help="only so many")
    add("--quick", action="store_true", help="some points, one timed step a sample")
    add("--list", action="store_true", help="only print how much there is to measure")
    add("--write", action="store_true", help="only write what was measured so far")
    add(
        "--publish",
        action="store_true",
        help="only add what was measured so far to the repository's samples, and write"
        " docs/paper_tables from all of them",
    )
    add("--width", type=int, default=2048, help="of the perceptron; paper: 5000")
    add("--image", type=int, default=32, help="pixels on a side")
    add("--batch", type=int, help="samples, to try it out; paper: 1200, 84, 90")
    add(
        "--rounds",
        type=int,
        help=f"samples of each point: {ROUNDS} by default, {QUICK_ROUNDS} with --quick;"
        " paper: 10",
    )
    add("--output", type=Path, default=OUTPUT, help="folder of samples and page")
    arguments = parser.parse_args(argv)
    if arguments.figures is None:
        arguments.figures = QUICK_FIGURES if arguments.quick else FIGURES
    if arguments.rounds is None:
        arguments.rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
    arguments.data = arguments.output / "data"
    return arguments
