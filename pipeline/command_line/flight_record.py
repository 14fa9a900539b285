"""The command ``divisible flight-record``."""

from __future__ import annotations

import click

from divisible.communication import (
    flight_files,
    flight_report,
    flight_search,
    flight_table,
)
from divisible.terminal_text import printable
from pipeline.command_line import console, options


@click.command("flight-record")
@click.argument(
    "directory", type=click.Path(exists=True, file_okay=False), required=False
)
@click.option(
    "--last",
    type=options.NUMBER,
    default=10,
    show_default=True,
    help="Number of lines for each rank.",
)
@options.speaking
def flight_record_command(directory: str | None, last: int) -> None:
    """Shows what the ranks of a run did before it ended, and which rank is behind.

    DIRECTORY is printed when a run ends by an error or a stall. Without it, the command
    shows your newest run on this host, or in the directory that the variable
    DIVISIBLE_FLIGHT_RECORD names.
    """
    if directory is None:
        directory = flight_search.newest_job()
        console.say(f"flight records in {printable(str(directory))}")
    with console.plain_warnings():
        logs = flight_files.logs(directory)
    rows = flight_table.rows(logs, last)
    titles = ("time", "rank", "call", "event")
    console.print_table(titles, rows, left=(0, 2, 3), last_wraps=True)
    for text in [*flight_report.verdict(logs), *flight_report.processes(logs)]:
        console.say_wrapped(text)
