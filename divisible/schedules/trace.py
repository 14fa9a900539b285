"""Timelines as files in Chrome's trace format."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from divisible.files import written_aside
from divisible.schedules.events import Event

if TYPE_CHECKING:
    from divisible.schedules.timeline import Timeline


def save_trace(timeline: Timeline, path: str | os.PathLike) -> None:
    """Writes a timeline; see `Timeline.save`.

    Args:
        timeline: What to write.
        path: Where to write.
    """
    about = {"name": timeline.name, "n_ranks": timeline.n_ranks}
    if timeline.peak_memory is not None:
        about["peak_memory"] = timeline.peak_memory.tolist()
    with written_aside(path) as aside, open(aside, "w", encoding="utf-8") as file:
        file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)},\n')
        file.write('"traceEvents": [\n')
        rows = [
            {
                "ph": "M",
                "pid": 0,
                "tid": rank,
                "name": key,
                "args": {argument: value},
            }
            for rank in range(timeline.n_ranks)
            for key, argument, value in (
                ("thread_name", "name", f"rank {rank}"),
                ("thread_sort_index", "sort_index", rank),
            )
        ]
        file.write(",\n".join(map(json.dumps, rows)))
        for event in timeline:
            entry = {
                "ph": "X",
                "pid": 0,
                "tid": event.rank,
                "name": str(event.what),
                "cat": event.category,
                # The format counts in microseconds.
                "ts": event.start * 1e6,
                "dur": (event.end - event.start) * 1e6,
            }
            file.write(f",\n{json.dumps(entry)}")
        file.write("\n]}\n")


def load_trace(path: str | os.PathLike) -> tuple[list[Event], dict[str, Any]]:
    """Reads a timeline; see `Timeline.load`.

    Args:
        path: What `save_trace` wrote.

    Returns:
        The events, and what else is known: ``'name'``, ``'n_ranks'`` and perhaps
        ``'peak_memory'``.

    Raises:
        KeyError, TypeError, ValueError: If the file is not in that format.
    """
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    events = [
        Event(
            entry["tid"],
            entry["name"],
            entry["ts"] / 1e6,
            (entry["ts"] + entry["dur"]) / 1e6,
            entry["cat"],
        )
        for entry in content["traceEvents"]
        if entry["ph"] == "X"
    ]
    return events, content["otherData"]
