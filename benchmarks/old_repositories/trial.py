"""One run of a program, in a process of its own with a deadline."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common.results import ROOT
from benchmarks.old_repositories.processes import (
    copied,
    last_line,
    run_process,
    variables,
)
from benchmarks.old_repositories.program import Change, Program

DRIVERS = Path(__file__).parent / "drivers"
SEED = 1


class Way(NamedTuple):
    """How a program is run.

    Attributes:
        kernels: Whether kernels are in force.
        modes: Modes of ``chainer_compat``, separated by commas.
        change: Whether the program's line is changed.
        nudge: Noise of gradients and parameters, as part of their size.
        draw: Seed of that noise.
    """

    kernels: bool = True
    modes: str = ""
    change: bool = False
    nudge: float = 0.0
    draw: int = 0


class Run(NamedTuple):
    """Result of a run.

    Attributes:
        losses: Loss of each step.
        times: Seconds when each step began, and one more.
        failure: The line that names the error, or nothing.
        output: All that the program printed.
    """

    losses: list[float]
    times: list[float]
    failure: str
    output: str


def with_change(place: Path, change: Change) -> None:
    """Replaces a line, with the indentation that it has.

    Raises:
        IndexError: If the file has no such line.
    """
    file = place / change.file
    lines = file.read_text().splitlines(keepends=True)
    old = lines[change.line - 1]
    indentation = old[: len(old) - len(old.lstrip())]
    lines[change.line - 1] = f"{indentation}{change.text}\n"
    file.write_text("".join(lines))


def run(program: Program, trees: Path, python: Path, data_sets: Path, way: Way) -> Run:
    """Runs a program in a copy of its tree.

    Args:
        program: The program.
        trees: Folder of all trees.
        python: Interpreter of its environment.
        data_sets: Root of Chainer's data sets.
        way: How it is run.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(program, trees, Path(folder, program.name))
        sets = Path(folder, "data_sets")
        sets.mkdir()
        for each in data_sets.iterdir():
            (sets / each.name).symlink_to(each)
        for writes, place in (
            (program.data, tree / program.folder),
            (program.downloads, sets),
        ):
            for write in writes:
                write(place, np.random.RandomState(SEED))
        if way.change:
            with_change(tree, program.change)
        output, settings = Path(folder, "record.json"), Path(folder, "settings.json")
        settings.write_text(json.dumps(_settings(program, way, output)))
        command = [python, "-W", "ignore", "-m"]
        command += ["benchmarks.old_repositories.recording", settings]
        own = {
            "CHAINER_DATASET_ROOT": str(sets),
            "CHAINER_KERNELS": str(int(way.kernels)),
        }
        if way.modes:
            own["CHAINER_COMPAT"] = way.modes
        if program.beside:
            others = [copied(b, trees, Path(folder, b.name)) for b in program.beside]
            own["PYTHONPATH"] = os.pathsep.join(map(str, [ROOT, *others]))
        environment = variables(Path(folder), own)
        status, text = run_process(
            command, tree / program.folder, environment, program.seconds
        )
        record = {"losses": [], "times": []}
        if output.exists():
            record = json.loads(output.read_text())
    failure = "" if status == 0 else last_line(text, status)
    if not failure and len(record["losses"]) < min(2, program.steps):
        failure = "ended without training"
    return Run(record["losses"], record["times"], failure, text)


def _settings(program: Program, way: Way, output: Path) -> dict:
    script, *others = program.arguments
    if program.is_driver:
        script = str(DRIVERS / script)
    return {
        "arguments": [script, *others],
        "steps": program.steps,
        "nudge": way.nudge,
        "draw": way.draw,
        "seed": SEED,
        "output": str(output),
    }
