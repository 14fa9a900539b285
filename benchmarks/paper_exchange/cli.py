"""The command: trains in all ways, and writes the page."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks.common.hosts import keep_freed_memory
from benchmarks.common.results import ROOT, command, machine
from benchmarks.paper_exchange.curves import Origin, begin, read, train_all
from benchmarks.paper_exchange.experiments import SMALL, Scale, jobs

#: Folders of the page and of the curves.
PAGE = ROOT / "docs" / "paper_exchange"
DATA = ROOT / "benchmarks" / "paper_exchange" / "data"
#: Name of the file of curves.
CURVES = "curves.jsonl"


def main() -> None:
    """Runs the command."""
    arguments = parse()
    file = arguments.data / CURVES
    arguments.data.mkdir(parents=True, exist_ok=True)
    if not arguments.resume:
        packages = "numpy", "numba", "chainer", "scikit-learn"
        begin(file, Origin(command(), machine(*packages), scale_of(arguments)))
    elif not file.exists():
        sys.exit(f"{file} is not there: leave out --resume")
    origin, curves = read(file)
    done = {curve.job for each in curves.values() for curve in each}
    todo = [job for job in jobs(origin.scale) if job not in done]
    keep_freed_memory()
    if todo:
        print(f"{len(todo)} trainings, {arguments.processes} at a time", flush=True)
    start = time.perf_counter()
    finished = train_all(todo, origin.scale, file, arguments.processes)
    for number, curve in enumerate(finished, 1):
        print(
            f"{(time.perf_counter() - start) / 60:5.1f} min, {number} of {len(todo)}:"
            f" {curve.job.task}, {curve.job.way}, seed {curve.job.seed}: best"
            f" {curve.best:.2f} %, gain {curve.gain:.2f}",
            flush=True,
        )
    # Matplotlib and SciPy take a second to load, in each process.
    from benchmarks.paper_exchange import page
    from benchmarks.paper_exchange.look import look

    _, curves = read(file)
    page.write(arguments.page, origin, curves, look(origin.scale))
    print(f"written: {arguments.page / 'README.md'}")


def scale_of(arguments: argparse.Namespace) -> Scale:
    """Returns the size of the experiments that arguments ask for."""
    scale = SMALL if arguments.quick else Scale()
    given = {"part": arguments.part, "seeds": arguments.seeds}
    return scale._replace(**{k: v for k, v in given.items() if v is not None})


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper_exchange",
        description="Trains two networks with gradients in 8 bits and in float32."
        " Writes figures 1 and 8 to 13 of Oyama et al. (2017) and a table of findings.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer steps, one seed")
    add("--part", type=float, help="part of the steps, up to 1")
    add("--seeds", type=int, help="seeds of the experiments that are repeated")
    add(
        "--processes",
        type=int,
        default=os.cpu_count(),
        help="trainings at a time, by default as many as cores",
    )
    add(
        "--resume",
        action="store_true",
        help="train only what a run that was stopped has left, and write the page",
    )
    add("--output", type=Path, help="folder, in place of docs/paper_exchange and data")
    arguments = parser.parse_args()
    if arguments.part is not None and not 0 < arguments.part <= 1:
        parser.error(f"--part must be in (0, 1], not {arguments.part}")
    arguments.data = arguments.output or DATA
    arguments.page = arguments.output or PAGE
    return arguments
