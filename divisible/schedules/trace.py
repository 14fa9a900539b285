"""Timelines as files in Chrome's trace format."""

from __future__ import annotations

import json
import os

import numpy as np

from divisible.files import written_aside
from divisible.schedules.timeline import Event, Timeline


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


def load_trace(path: str | os.PathLike) -> Timeline:
    """Reads a timeline; see `Timeline.load`.

    Args:
        path: What `save_trace` wrote.

    Returns:
        The timeline.

    Raises:
        ValueError: If the file is not in that format.
    """
    with open(path, encoding="utf-8") as file:
        try:
            content = json.load(file)
            about = content["otherData"]
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
            timeline = Timeline(events, about["n_ranks"], about["name"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{os.fspath(path)} is not a timeline saved by Timeline.save: {error!r}"
            ) from error
    if "peak_memory" in about:
        timeline.peak_memory = np.array(about["peak_memory"])
    return timeline
