"""Schedules as text: a rank-by-step grid that can be read back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from divisible.schedules.actions import NUMBER, ScheduleError
from divisible.schedules.dependencies import NONE, unit_steps
from divisible.schedules.table import Table

_IDLE = "."
# No larger grid can be read, because each microbatch takes memory in every check.
_MICROBATCHES = "[0-9]{1,6}"
_HEADER = re.compile(
    rf"(?P<name>.*): (?P<microbatches>{_MICROBATCHES}) microbatch(?:es)?, "
    rf"{NUMBER} stages? on ranks?(?P<ranks>(?: {NUMBER})*)"
    rf"(?:, (?P<versions>{NUMBER}) weight versions)?"
)
_ROW = re.compile(rf"rank\s+(?P<rank>{NUMBER})(?P<cells>(?:\s.*)?)")


def draw(
    schedule: Table,
    marked: Iterable[int] = (),
    ranks: Sequence[int] | None = None,
    steps: tuple[int, int] | None = None,
) -> str:
    """Draws a schedule as a rank-by-step grid.

    If a rank waits forever, its remaining actions stand side by side. They begin at
    the step in which all ranks have stopped.

    Args:
        schedule: Any schedule, valid or not.
        marked: Numbers of actions to put between exclamation marks.
        ranks: The ranks to show; all of them by default.
        steps: The half-open range of steps to show; all of them by default.

    Returns:
        Lines of text, which `read` reads if ``ranks`` and ``steps`` were left out.
    """
    step = grid_steps(schedule)
    marked = set(marked)
    last = int(step.max(initial=-1)) + 1
    begin, end = (0, last) if steps is None else (max(steps[0], 0), min(steps[1], last))
    shown = range(schedule.n_ranks) if ranks is None else ranks
    rows = []
    for rank in shown:
        row = [_IDLE] * (end - begin)
        for action in range(schedule.offsets[rank], schedule.offsets[rank + 1]):
            if begin <= step[action] < end:
                text = str(schedule.action(action))
                if action in marked:
                    text = f"!{text}!"
                row[step[action] - begin] = text
        rows.append(row)
    numbers = [str(column) for column in range(begin, end)]
    width = max((len(cell) for row in [numbers, *rows] for cell in row), default=1)
    label = len(f"rank {max(shown, default=0)}")
    m, n, versions = schedule.n_microbatches, schedule.n_stages, ""
    if schedule.weight_versions > 1:
        versions = f", {schedule.weight_versions} weight versions"
    lines = [
        f"{schedule.name}: {m} microbatch{'es' * (m != 1)}, "
        f"{n} stage{'s' * (n != 1)} on rank{'s' * (n != 1)} "
        + " ".join(map(str, schedule.stage_ranks))
        + versions
    ]
    for head, row in zip(
        ["step", *(f"rank {rank:>{label - 5}}" for rank in shown)], [numbers, *rows]
    ):
        cells = " ".join(cell.rjust(width) for cell in row)
        lines.append(f"{head.ljust(label)}  {cells}".rstrip())
    return "\n".join(lines)


def grid_steps(schedule: Table) -> np.ndarray:
    """Returns the grid column of every action.

    Args:
        schedule: Any schedule, valid or not.

    Returns:
        For each action its column: its step when all actions take one step. Actions
        that are never reached have columns after the last such step.
    """
    step, stuck = unit_steps(schedule)
    rest = int(step.max(initial=-1)) + 1
    for rank in np.flatnonzero(stuck != NONE):
        end = schedule.offsets[rank + 1]
        step[stuck[rank] : end] = np.arange(rest, rest + end - stuck[rank])
    return step


def read(text: str) -> tuple[list[list[str]], list[int], int, str, int]:
    """Reads what `draw` writes.

    Args:
        text: The header line and one line per rank. Columns and marks do not count.

    Returns:
        For each rank its actions as text, for each stage its rank, the number of
        microbatches, the name, and the number of weight versions. These are the
        arguments of `divisible.schedules.schedule.Schedule`.

    Raises:
        ScheduleError: If a line cannot be read.
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    header = _HEADER.fullmatch(lines[0]) if lines else None
    if header is None:
        raise ScheduleError(
            f"{lines[0] if lines else text!r}: expected a first line such as "
            "'1f1b: 8 microbatches, 2 stages on ranks 0 1'"
        )
    rows: list[list[str]] = []
    for line in lines[1:]:
        if not line or line.startswith("step"):
            continue
        row = _ROW.fullmatch(line)
        if row is None or int(row["rank"]) != len(rows):
            raise ScheduleError(
                f"{line!r}: expected 'rank {len(rows)}' and its actions"
            )
        cells = row["cells"].replace("!", "").split()
        rows.append([cell for cell in cells if cell != _IDLE])
    ranks = [int(rank) for rank in header["ranks"].split()]
    versions = int(header["versions"] or 1)
    return rows, ranks, int(header["microbatches"]), header["name"], versions
