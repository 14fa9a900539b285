"""Schedules as HTML, for notebooks: a coloured grid of ranks and steps."""

from __future__ import annotations

from html import escape

import numpy as np

from divisible.schedules.bars import COLORS
from divisible.schedules.grid import grid_steps
from divisible.schedules.table import Table

# A browser needs seconds for tables of more cells than these.
_MOST_RANKS, _MOST_STEPS = 64, 256


def grid_html(schedule: Table) -> str:
    """Returns a schedule as a table, a row for each rank and a column for each step.

    All actions take one step, whatever they cost in seconds, as in the text of a
    schedule (`divisible.schedules.grid`). Colours are those of timelines.

    Args:
        schedule: A schedule. Of a large one, the first 64 ranks and 256 steps are
            shown.

    Returns:
        HTML without scripts or references to other files.

    Example:
        >>> from divisible.schedules import one_f_one_b
        >>> grid_html(one_f_one_b(2, 2)).count("<tr>")
        3
    """
    step = grid_steps(schedule)
    n_steps = int(step.max(initial=-1)) + 1
    columns, ranks = min(n_steps, _MOST_STEPS), min(schedule.n_ranks, _MOST_RANKS)
    rows = [["<th></th>", *(f"<th>{column}</th>" for column in range(columns))]]
    for rank in range(ranks):
        cells = ["<td></td>"] * columns
        begin, end = schedule.offsets[rank], schedule.offsets[rank + 1]
        for number in (np.flatnonzero(step[begin:end] < columns) + begin).tolist():
            action = schedule.action(number)
            cells[step[number]] = (
                f'<td style="background: {COLORS[action.kind]}; color: white">'
                f"{action}</td>"
            )
        rows.append([f"<th>rank {rank}</th>", *cells])
    table = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    title = escape(f"{schedule.name}: {_size(schedule)}")
    if (columns, ranks) != (n_steps, schedule.n_ranks):
        title += f"; the first {ranks} ranks and {columns} of {n_steps} steps"
    return f"<div>{title}</div><table>{table}</table>"


def _size(schedule: Table) -> str:
    return (
        f"{schedule.n_microbatches} microbatches, {schedule.n_stages} stages on"
        f" {schedule.n_ranks} ranks"
    )
