"""The command ``divisible watch``."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Callable

import click
from rich.console import Console
from rich.live import Live

from pipeline.command_line import console, options
from pipeline.watching.run_view import RunView, RunWatch
from pipeline.watching.screen import screen_of


@click.command("watch")
@click.argument("run", type=click.Path(exists=True, file_okay=False), default="result")
@click.option(
    "--every",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two looks at the files.",
)
@click.option("--once", is_flag=True, help="Print the state once, and end.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print each state as a line of JSON."
)
@click.option(
    "--events",
    type=click.IntRange(0),
    default=6,
    show_default=True,
    help="Number of the newest events.",
)
@options.speaking
def watch_command(
    run: str, every: float, once: bool, as_json: bool, events: int
) -> None:
    """Shows a run while it trains: its ranks, which is slow and why, its events.

    RUN is the folder that the script writes to, by default "result". The script has a
    ProgressLine in its trainer, or calls RunStatus in a loop of its own. The command
    reads files and asks the ranks nothing, so it may start and stop at any time. It
    ends when all ranks have written their end. Ranks that were killed write none, and
    may be started again; press Ctrl-C then. If the output is no terminal, it looks
    once; with --json it goes on.
    """
    watch, terminal = RunWatch(run), console.terminal()
    if as_json:
        shows = contextlib.nullcontext(_print_json)
    elif once or not sys.stdout.isatty():
        once = True
        shows = contextlib.nullcontext(
            lambda view: terminal.print(screen_of(view, events, terminal.width))
        )
    else:
        shows = _live(terminal, events)
    # Its user ends it by Ctrl-C.
    with contextlib.suppress(KeyboardInterrupt), shows as show:
        while True:
            view = watch.look()
            show(view)
            if once or view.has_ended:
                return
            time.sleep(every)


def _print_json(view: RunView) -> None:
    click.echo(json.dumps(view.to_json(), allow_nan=False))


@contextlib.contextmanager
def _live(terminal: Console, n_events: int) -> Iterator[Callable[[RunView], None]]:
    """Opens a block with a function that draws a run at the same place."""
    with Live(console=terminal, auto_refresh=False) as live:
        yield lambda view: live.update(
            screen_of(view, n_events, terminal.width), refresh=True
        )
