"""Whole public scripts that ``divisible port`` rewrites, on two ranks.

    python -m benchmarks.old_repositories.ports DIR

Each script is rewritten by the command alone, and no line by hand. It trains on one
process as it is, and its port on two ranks, with the same seeds and the same data.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common.results import Result, command, machine
from benchmarks.old_repositories.arguments import (
    found_in,
    is_chosen,
    parser_of,
    write_left_out,
)
from benchmarks.old_repositories.environments import environment
from benchmarks.old_repositories.made_up import data_sets
from benchmarks.old_repositories.port_table import PORTS, Port
from benchmarks.old_repositories.processes import (
    copied,
    last_line,
    run_process,
    variables,
)
from benchmarks.old_repositories.trial import SEED

#: Images of MNIST, and a fifth of it of CIFAR: whole epochs take seconds.
N_TRAIN, N_TEST = 1000, 500
#: Words before an obstacle in the output of ``divisible port``.
OBSTACLE = "cannot be ported: "


class Compared(NamedTuple):
    """Losses of a script and of its port.

    Attributes:
        serial: Losses of the script.
        pipeline: Losses of its port.
    """

    serial: list[float]
    pipeline: list[float]

    def __str__(self) -> str:
        """Returns how they agree, in words."""
        n = len(self.serial)
        if n < 2 or len(self.pipeline) != n:
            return f"{n} losses, and {len(self.pipeline)} of the port"
        pairs = zip(self.serial, self.pipeline)
        apart = max(abs(a - b) / abs(a) if a != b else 0.0 for a, b in pairs)
        return f"{n} losses {'equal' if apart == 0 else f'{apart:.0e}'}"


class StoppedError(Exception):
    """A script did not run, or was not rewritten."""


def row(port: Port, arguments) -> str:
    """Rewrites a script and runs it before and after; returns its line."""
    head = f"{port.repository:44} {Path(port.folder, port.script)!s:48} {port.kind:22}"
    places = arguments.environments
    python, failure = environment(places, port.needs, arguments.timeout)
    if failure:
        return f"{head} not installed: {failure}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            return f"{head} {_compared(port, Path(folder), python, arguments)}"
        except StoppedError as error:
            return f"{head} {error}"


def _compared(port: Port, folder: Path, python: Path, arguments) -> str:
    trees = []
    for name in "serial", "pipeline":
        place = folder / name / port.name
        trees.append(copied(port, arguments.trees, place) / port.folder)
        for write in port.data:
            write(trees[-1], np.random.RandomState(SEED))
    before, after = (tree / port.script for tree in trees)
    # Quick, and a refusal ends it.
    scripts = [before, _ported(after, python, arguments)]
    losses = []
    for n_ranks, script, tree in zip((1, 2), scripts, trees):
        text = _run(port, script, python, n_ranks, arguments)
        losses.append(_losses(port, tree, text))
    lines = difflib.ndiff(*(each.read_text().splitlines() for each in scripts))
    changes = [line[:2] for line in lines]
    words = f"+{changes.count('+ ')} -{changes.count('- ')} lines"
    return f"{words}, {Compared(*losses)}"


def _ported(script: Path, python: Path, arguments) -> Path:
    """Rewrites a script by ``divisible port``; returns the new one."""
    program = "from pipeline.command_line.main import main; main()"
    line = [python, "-W", "ignore", "-c", program, "port", script]
    status, text = _process(line, script.parent, {}, arguments)
    places = [each for each in text.splitlines() if OBSTACLE in each]
    if places:
        text = places[0].partition(OBSTACLE)[2]
        raise StoppedError(f"not ported, {len(places)} places: {text}")
    if status:
        raise StoppedError(f"not ported: {last_line(text, status)}")
    return script.with_name(f"{script.stem}_pipeline.py")


def _run(port: Port, script: Path, python: Path, n_ranks: int, arguments) -> str:
    """Runs a script, as it is or on ranks; returns what it prints."""
    line = [python, "-W", "ignore", "-m"]
    if n_ranks == 1:
        line += ["benchmarks.old_repositories.seeded", script]
    else:
        launcher = Path(sys.executable).parent / "mpiexec"
        first = launcher if launcher.exists() else "mpiexec"
        line = [first, "-n", n_ranks, *line, "pipeline", script]
    own = {
        "CHAINER_DATASET_ROOT": str(arguments.data_sets),
        "CHAINER_COMPAT": port.modes,
    }
    tree = script.parents[len(Path(port.script).parts) - 1]
    status, text = _process([*line, *port.options], tree, own, arguments)
    if status != 0:
        what = "its port stopped" if n_ranks > 1 else "stopped"
        raise StoppedError(f"{what}: {last_line(text, status)}")
    return text


def _process(line: list, folder: Path, own: dict, arguments) -> tuple[int | None, str]:
    # The MPI library lies beside this project's packages.
    libraries = f"{sys.prefix}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}"
    with tempfile.TemporaryDirectory() as home:
        found = variables(Path(home), {**own, "LD_LIBRARY_PATH": libraries})
        status, text = run_process(line, folder, found, arguments.deadline)
    if arguments.show and status:
        print(text)
    return status, text


def _losses(port: Port, tree: Path, text: str) -> list[float]:
    """Returns the losses of a run, of its log or of what it printed."""
    if port.printed:
        return [float(each) for each in re.findall(port.printed, text)]
    logs = sorted(tree.rglob("log"), key=lambda each: each.stat().st_mtime)
    if not logs:
        raise StoppedError("no log was written")
    entries = json.loads(logs[-1].read_text())
    return [
        float(entry[key]) for entry in entries for key in sorted(entry) if "loss" in key
    ]


def main() -> None:
    """Runs all scripts and writes the result."""
    parser = parser_of(__doc__, "scripts")
    parser.add_argument("--deadline", type=float, default=300, help="seconds of a run")
    arguments = parser.parse_args()
    wanted = [
        each
        for each in PORTS
        if is_chosen(arguments.only, f"{each.repository}/{each.folder}/{each.script}")
    ]
    there = found_in(wanted, parser, arguments.trees)
    result = Result("old_repositories_ports", arguments.output)
    result.write(command(), machine("chainer", "numpy"), "")
    write_left_out(result, wanted, there)
    with tempfile.TemporaryDirectory() as folder:
        arguments.environments = arguments.environments or Path(folder, "environments")
        arguments.data_sets = Path(folder, "data_sets")
        data_sets.write(arguments.data_sets, N_TRAIN, N_TEST)
        for port in there:
            result.write(row(port, arguments))
    result.save()


if __name__ == "__main__":
    main()
