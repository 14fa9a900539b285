"""Seconds from the loss of a rank to the next minibatch, and what takes them.

    python -m benchmarks.lost_rank

``divisible run --keep-going --shrink`` trains a small perceptron on four ranks, with a
copy of each minibatch in memory. A run loses a rank twice, killed by SIGKILL after a
minibatch. After the first loss four ranks start again; after the second, soon after the
first, three.

A loss ends when all ranks have trained the next minibatch. Its seconds have three
parts:

* noticing: until the command starts ranks;
* starting: until Python, MPI and the packages have started on the last rank;
* loading, training: until the minibatch. The ranks make the pipeline and load the copy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.results import ROOT, Result, command, machine
from benchmarks.lost_rank.setting import BEGINS, KILLED, LAYERS, MINIBATCH, WIDTH

RANKS, FEWER = 4, 3
SCRIPT = Path(__file__).parent / "training.py"
COMMAND = "import divisible_command as it; it.main()"
#: Seconds that a run may take.
DEADLINE = 300
#: Where copies are, if there is such a folder.
MEMORY = Path("/dev/shm")


class Loss(NamedTuple):
    """The seconds after a loss, and the minibatches that were trained again."""

    noticing: float
    starting: float
    loading: float
    repeated: int

    @property
    def seconds(self) -> float:
        """All seconds until the next minibatch."""
        return self.noticing + self.starting + self.loading


def main() -> None:
    """Loses ranks, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result = Result("lost_rank", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{LAYERS} layers of {WIDTH} units with Adam on {RANKS} ranks, a copy of each"
        f" minibatch; {arguments.rounds} runs; seconds, median (min..max)",
        "",
        f"{'the next start has':<19} {'noticing':<18} {'starting':<18}"
        f" {'loading, training':<18} {'all':<18} minibatches again",
    )
    runs = [losses() for _ in range(arguments.rounds)]
    for n_ranks, found in zip((RANKS, FEWER), zip(*runs)):
        result.write(row(n_ranks, found))
    result.save()


def losses() -> list[Loss]:
    """Runs a training, and returns its losses."""
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        folder = Path(name)
        log = folder / "log.jsonl"
        given = "run", "--keep-going", "--shrink", "-n", str(RANKS), "--log", str(log)
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *given, str(SCRIPT), name],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        if done.returncode:
            sys.exit(f"the run failed:\n{done.stdout}{done.stderr}")
        starts = [each for each in entries(log) if each["event"] == "start"]
        assert [each["ranks"] for each in starts] == [RANKS, RANKS, FEWER], starts
        moments = [e for each in folder.glob("moments-*.jsonl") for e in entries(each)]
    return [after(moments, starts, start) for start in (1, 2)]


def entries(file: Path) -> list[dict[str, Any]]:
    """Returns what the lines of a file hold."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def after(
    moments: Sequence[dict[str, Any]], starts: Sequence[dict[str, Any]], start: int
) -> Loss:
    """Returns the seconds of a loss.

    Args:
        moments: Moments of all ranks.
        starts: Starts of the ranks, of the command's log.
        start: Number of the start after the loss.
    """

    def of(number: int, what: str) -> list[dict[str, Any]]:
        return [m for m in moments if (m["start"], m["what"]) == (number, what)]

    (killed,) = of(start - 1, KILLED)
    trained = of(start, MINIBATCH)
    first = min(each["iteration"] for each in trained)
    begins = max(each["time"] for each in of(start, BEGINS))
    ends = max(each["time"] for each in trained if each["iteration"] == first)
    restarted = starts[start]["time"]
    return Loss(
        restarted - killed["time"],
        begins - restarted,
        ends - begins,
        killed["iteration"] + 1 - first,
    )


def row(n_ranks: int, found: Sequence[Loss]) -> str:
    """Returns the line of the losses after which so many ranks start."""
    parts = [[each[i] for each in found] for i in range(3)]
    parts.append([each.seconds for each in found])
    columns = [
        f"{statistics.median(part):.2f} ({min(part):.2f}..{max(part):.2f})"
        for part in parts
    ]
    again = sorted({each.repeated for each in found})
    return (
        f"{f'{n_ranks} ranks':<19} {columns[0]:<18} {columns[1]:<18}"
        f" {columns[2]:<18} {columns[3]:<18} {', '.join(map(str, again))}"
    )


if __name__ == "__main__":
    main()
