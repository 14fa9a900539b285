"""The terminal output of the commands of ``divisible``.

Names may come from untrusted files, so no character of them controls the terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Callable

from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from divisible.terminal_text import printable

# Least width of wrapped text, even on a narrower terminal.
_LEAST_WIDTH = 20


def say(text: str) -> None:
    """Prints one line or several."""
    text = printable(text, keeps_lines=True)
    terminal().print(text, markup=False, soft_wrap=True)


def say_wrapped(text: str, indent: int = 0) -> None:
    """Prints text in lines that fit the terminal.

    Args:
        text: The text, of any length.
        indent: Number of spaces before each line.
    """
    before, console = " " * indent, terminal()
    lines = textwrap.wrap(
        text,
        max(console.width, indent + _LEAST_WIDTH),
        initial_indent=before,
        subsequent_indent=before,
        break_on_hyphens=False,
    )
    for line in lines:
        say(line)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Sequence[int] = (),
    last_wraps: bool = False,
) -> None:
    """Prints a table, with numbers at the right.

    If a terminal is too narrow for all columns, the others follow in a table below,
    with the first column repeated.

    Args:
        columns: Titles of the columns.
        rows: Texts of the cells.
        left: Positions of the columns with texts at the left.
        last_wraps: Whether long texts of the last column are wrapped, instead of moving
            the column to a table below.
    """
    rows = [[printable(cell) for cell in row] for row in (columns, *rows)]
    console = terminal()
    # Widths include a space on either side.
    widths = [max(map(cell_len, column)) + 2 for column in zip(*rows)]
    tables = fitting_columns(widths, console.width)
    if last_wraps:
        tables = [[*range(len(columns))]]
    for chosen in tables:
        table = Table(box=None)
        for i in chosen:
            justify = "left" if i in left else "right"
            wraps = last_wraps and i == len(columns) - 1
            table.add_column(Text(rows[0][i]), justify=justify, no_wrap=not wraps)
        for row in rows[1:]:
            table.add_row(*(Text(row[i]) for i in chosen))
        console.print(table)


def fitting_columns(widths: Sequence[int], room: int) -> list[list[int]]:
    """Returns the columns of the tables that fit a terminal.

    Args:
        widths: Width of each column.
        room: Width of the terminal.

    Returns:
        The positions of the columns of each table; all begin with the first column.

    Example:
        >>> fitting_columns([5, 30, 10, 10], room=80)
        [[0, 1, 2, 3]]
        >>> fitting_columns([5, 30, 10, 10], room=50)
        [[0, 1, 2], [0, 3]]
    """
    tables, used = [[0]], widths[0]
    for i, width in enumerate(widths[1:], 1):
        if used + width > room and len(tables[-1]) > 1:
            tables.append([0])
            used = widths[0]
        tables[-1].append(i)
        used += width
    return tables


@contextlib.contextmanager
def show_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar on standard error, if it is a terminal."""
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Prints warnings as plain text, without the line of code."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            yield
        finally:
            for warning in caught:
                text = printable(f"warning: {warning.message}", keeps_lines=True)
                Console(stderr=True).print(
                    text, markup=False, highlight=False, soft_wrap=True
                )


def terminal() -> Console:
    """Returns the console of the standard output."""
    # Wide tables would be cut off at a default width if the width is not known.
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_known else 160, highlight=False)
