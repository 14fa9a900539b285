"""The command ``divisible control``: state of a supervised run, orders to it."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import click

from divisible.communication.flight_files import root_directory
from divisible.planning.units import count, format_seconds
from pipeline.command_line import console, options
from pipeline.training import control_files
from pipeline.training.control_files import ORDERS, Progress, Run

_PREFIX = "run-"
_SECONDS_TO_WAIT = 120.0


def default_directory(process: int) -> Path:
    """Returns the directory of a supervisor that was given none.

    Args:
        process: Number of the supervisor's process.

    Raises:
        OSError: If another user could change the directory above it.
    """
    return Path(os.path.abspath(root_directory())) / f"{_PREFIX}{process}"


def remove_dead_directories() -> None:
    """Removes default directories of supervisors that were killed long ago."""
    with contextlib.suppress(OSError):
        for path in Path(root_directory(make=False)).glob(f"{_PREFIX}*"):
            control_files.remove_if_dead(path)


@click.command("control")
@click.argument("run", metavar="RUN")
@click.argument("word", metavar="WORD", type=click.Choice(["status", *ORDERS]))
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=_SECONDS_TO_WAIT,
    show_default=True,
    help="Seconds to wait for the answer.",
)
@options.speaking
def control_command(run: str, word: str, wait: float) -> None:
    """Asks a run of "divisible run --keep-going", or gives it an order.

    RUN is the number of its process, or the directory that --control has named.

    \b
    divisible control 4711 status  prints the progress and the hosts.
    divisible control 4711 save    saves a snapshot at the next minibatch's end.
    divisible control 4711 stop    saves one, and ends the run with exit code 75.
    divisible control 4711 grow    looks for hosts that are back, and uses them.

    The ranks read orders between minibatches, if the script trains by a trainer with a
    PipelineUpdater, and has a snapshot() for "save" and "stop".
    """  # noqa: D301
    folder = default_directory(int(run)) if run.isdigit() else Path(run).absolute()
    if not control_files.is_live(folder):
        raise click.ClickException(f"no run has {folder}: it has ended, or {_others()}")
    if word == "status":
        _print_status(folder)
        return
    order = control_files.give(folder, word)
    text = control_files.answered(folder, order, wait)
    if text is None:
        raise click.ClickException(_unanswered(folder, wait))
    console.say(text)


def _print_status(folder: Path) -> None:
    run = control_files.read(folder, Run)
    if run is None:
        console.say("the run is being started")
        return
    console.say(f"{run.script}: process {run.process} on {run.host}")
    left = count(run.restarts_left, "restart")
    console.say(f"{run.state}, on {run.ranks}; start {run.starts}, {left} left")
    progress = control_files.read(folder, Progress)
    if progress is None:
        console.say("no minibatch has been reported since this start")
    else:
        age = format_seconds(max(0.0, time.time() - progress.time))
        console.say(
            f"iteration {progress.iteration}, epoch {progress.epoch:.2f}, {age} ago"
        )
        if progress.words:
            console.say(f"last order to save: {progress.words}")
    if run.last:
        console.say(f"last end: {run.last}")


def _unanswered(folder: Path, wait: float) -> str:
    """Returns the words for an order without an answer."""
    if not control_files.is_live(folder):
        return "the run has ended without an answer"
    begin = f"no answer within {wait:.0f} s"
    if control_files.read(folder, Progress) is None:
        return (
            f"{begin}: rank 0 reads no orders. Only a trainer with a PipelineUpdater"
            f" reads them, on a host that sees {folder}: give --control a directory"
            f" that the hosts share"
        )
    return f"{begin}. The order stays: a minibatch or a snapshot takes longer"


def _others() -> str:
    """Returns words for the runs that can be reached on this host."""
    found = []
    try:
        for path in sorted(Path(root_directory(make=False)).glob(f"{_PREFIX}*")):
            if control_files.is_live(path):
                found.append(path.name.removeprefix(_PREFIX))
    except OSError:
        pass
    if not found:
        return "it is on another host. No run is reached here by a number"
    return f"it is on another host. Runs here: {', '.join(found)}"
