"""The command ``divisible report``."""

from __future__ import annotations

from pathlib import Path

import click

from divisible.files import written_aside
from divisible.schedules.timeline import Timeline
from pipeline.command_line import console, options
from pipeline.watching.report import report_html
from pipeline.watching.run_view import RunWatch


@click.command("report")
@click.argument("run", type=click.Path(exists=True, file_okay=False), default="result")
@click.option(
    "--against",
    "predicted",
    type=options.Loaded(Timeline.load),
    metavar="PREDICTED",
    help="Compare the newest timeline in RUN with this one, of 'divisible simulate'.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="File to write.  [default: report.html in RUN]",
)
@options.speaking
def report_command(run: str, predicted: Timeline | None, output: str | None) -> None:
    """Makes one page of a run, which opens in a browser without a network.

    RUN is the folder that the script writes to, by default "result". The script has a
    ProgressLine in its trainer, or calls RunStatus in a loop of its own. The page has
    the curves of the log, a table of ranks and the newest timeline. It lists the
    choices of the plan with the reasons, moves of layers, snapshots, restarts and
    warnings.
    """
    page = report_html(RunWatch(run).look(), predicted)
    path = output or str(Path(run, "report.html"))
    with written_aside(path) as aside, open(aside, "w", encoding="utf-8") as file:
        file.write(page)
    console.say(f"written to {path}")
