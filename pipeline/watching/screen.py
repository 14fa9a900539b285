"""The state of a run on a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from divisible.planning.units import format_bytes, format_seconds
from divisible.terminal_text import printable
from pipeline.watching.run_line import bubble, duration, number
from pipeline.watching.run_view import RunView
from pipeline.watching.status_files import RankStatus

#: Titles of the texts of :func:`rank_row`.
RANK_COLUMNS = (
    *("rank", "host", "layers", "computes", "sends", "waits", "updates", "rest"),
    *("memory", "does now"),
)
# Width of the last column, which is wrapped, and of names of hosts.
_LEAST_WIDTH, _MOST_OF_HOST = 14, 16
_LEFT = ("host", "layers", "does now")
# Columns that narrow terminals have no room for, by the least width with room.
_ROOM = {"sends": 72, "updates": 72, "rest": 72, "layers": 72, "host": 56}


def screen_of(view: RunView, n_events: int, width: int) -> RenderableType:
    """Returns what a terminal shows of a run.

    Args:
        view (RunView): The run.
        n_events (int): Number of the newest events.
        width (int): Columns of the terminal.
    """
    shown = [name for name in RANK_COLUMNS if _ROOM.get(name, 0) <= width]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in shown:
        is_last = name == RANK_COLUMNS[-1]
        table.add_column(
            name,
            justify="left" if name in _LEFT else "right",
            no_wrap=not is_last,
            overflow="fold" if is_last else "ellipsis",
            min_width=_LEAST_WIDTH if is_last else None,
            max_width=_MOST_OF_HOST if name == "host" else None,
        )
    for each in view.ranks:
        row = dict(zip(RANK_COLUMNS, rank_row(each, view.doing.get(each.rank, ""))))
        style = "bold red" if _is_slow(each.rank, view) else ""
        table.add_row(*(Text(row[name]) for name in shown), style=style)
    lines = [Text(line) for line in head_lines(view)]
    notices = [Text(f"! {printable(text)}", style="bold") for text in view.notices]
    events = [Text(line, style="dim") for line in event_lines(view, n_events)]
    return Group(*lines, *notices, Text(""), table, Text(""), *events)


def _is_slow(rank: int, view: RunView) -> bool:
    return any(text.startswith(f"rank {rank} ") for text in view.chief.slow)


def head_lines(view: RunView) -> list[str]:
    """Returns lines about all ranks together."""
    first = view.chief
    progress = [] if first.epoch is None else [f"epoch {first.epoch:.2f}"]
    progress.append(f"step {first.n_steps:,}")
    if first.steps_per_second is not None:
        progress.append(f"{first.steps_per_second:.3g} steps/s")
        progress.append(f"{first.samples_per_second or 0:,.4g} samples/s")
    if first.seconds_left is not None and first.state == "runs":
        progress.append(f"{duration(first.seconds_left)} left")
    lines = [f"{view.run}: {first.state}, {', '.join(progress)}"]
    if first.values:
        pairs = (f"{name} {number(value)}" for name, value in first.values.items())
        lines.append(", ".join(pairs))
    share = bubble(view.ranks)
    if share is not None:
        planned = first.planned_bubble
        by_plan = "" if planned is None else f", by the plan {planned:.1%}"
        line = f"bubble {share:.1%}{by_plan}"
        longest = max(each.now.span for each in view.ranks if each.now is not None)
        line += f"; forward and backward of a step {format_seconds(longest)}"
        if first.planned_step is not None:
            line += f", by the plan {format_seconds(first.planned_step)}"
        lines.append(line)
    return [printable(line) for line in lines]


def rank_row(status: RankStatus, doing: str) -> list[str]:
    """Returns the texts of a rank's row in the table."""
    layers = ", ".join(f"{start}..{end - 1}" for start, end in status.stages.values())
    row = [str(status.rank), status.host, layers]
    now = status.now
    if now is None:
        row += [""] * 5
    else:
        step = now.span + now.updating + now.between or 1.0
        parts = now.computing, now.sending, now.waiting, now.updating, now.between
        row += [f"{part / step:.0%}" for part in parts]
    return [printable(text) for text in (*row, format_bytes(status.memory), doing)]


def event_lines(view: RunView, n_events: int) -> Sequence[str]:
    """Returns a line about each of the newest events."""
    newest = view.events[-n_events:] if n_events else []
    return [f"{clock(event.time)}  {printable(event.text)}" for event in newest]


def clock(seconds: float) -> str:
    """Returns a moment as a date and a time of this host."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(min(seconds, _LATEST)))


# Later times have no date with a year of four digits.
_LATEST = 253_402_300_799
