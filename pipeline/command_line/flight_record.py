"""The command ``divisible flight-record``."""

from __future__ import annotations

import click

from divisible.communication import flight_files, flight_report
from pipeline.command_line import console, options


@click.command("flight-record")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--last",
    type=options.NUMBER,
    default=10,
    show_default=True,
    help="How many lines of each rank.",
)
@options.speaking
def flight_record_command(directory: str, last: int) -> None:
    """Shows what the ranks of a run did before it ended, and which one is behind.

    DIRECTORY is named where a run ends by an error or a stall. After a run that was
    killed, it is the newest in the directory divisible-UID of the one for temporary
    files, or in the one that the variable DIVISIBLE_FLIGHT_RECORD named.
    """
    logs = flight_files.logs(directory)
    rows = flight_report.rows(logs, last)
    console.print_table(("time", "rank", "call", "event"), rows, left=(0, 2, 3))
    for text in flight_report.verdict(logs):
        console.say(text)
