"""Timelines as files in Chrome's trace format."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from divisible.files import written_aside
from divisible.records import (
    LIMIT,
    MOST_RANKS,
    plain_integer,
    plain_number,
    plain_text,
    shown,
)
from divisible.schedules.event_table import EventTable
from divisible.schedules.events import Event

_FIELDS = {
    "tid": (int,),
    "name": (str,),
    "ts": (int, float),
    "dur": (int, float),
    "cat": (str,),
}


def save_trace(timeline: EventTable, path: str | os.PathLike) -> None:
    """Writes a timeline; see `Timeline.save`.

    Args:
        timeline: The timeline to write.
        path: The file to write.
    """
    about = {"name": timeline.name, "n_ranks": timeline.n_ranks}
    if timeline.peak_memory is not None:
        about["peak_memory"] = timeline.peak_memory.tolist()
    if timeline.n_minibatches > 1:
        about["n_minibatches"] = timeline.n_minibatches
    if timeline.bound is not None:
        about["bound"] = timeline.bound
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


def read_trace(content: dict[str, Any]) -> tuple[list[Event], dict[str, Any]]:
    """Reads a timeline; see `Timeline.load`.

    Args:
        content: The parsed content of a file that `save_trace` wrote.

    Returns:
        The events, and the other fields: ``'name'``, ``'n_ranks'``,
        ``'n_minibatches'``, ``'peak_memory'``, which is None or an array, and
        ``'bound'``, which is None or a number.

    Raises:
        TypeError, ValueError: If the content has another format; the message names the
            field.
    """
    about = _known(content.get("otherData"))
    entries = content.get("traceEvents")
    if not isinstance(entries, list):
        raise ValueError(f"traceEvents must be a list, not {shown(entries)}")
    events = []
    for i, entry in enumerate(entries):
        what = f"traceEvents[{i}]"
        if not (isinstance(entry, dict) and "ph" in entry):
            raise ValueError(f"{what} is {shown(entry)}: expected an event with a ph")
        # Entries of other kinds are names of rows, for example.
        if entry["ph"] == "X":
            events.append(_event(what, entry, about["n_ranks"]))
    return events, about


def _known(about: Any) -> dict[str, Any]:
    if not isinstance(about, dict):
        raise ValueError(f"otherData must have the number of ranks, not {shown(about)}")
    for name in ("name", "n_ranks"):
        if name not in about:
            raise ValueError(f"otherData.{name} is missing")
    plain_text("otherData.name", about["name"])
    n_ranks = plain_integer("otherData.n_ranks", about["n_ranks"])
    if not 0 <= n_ranks <= MOST_RANKS:
        raise ValueError(
            f"otherData.n_ranks must be from 0 to {MOST_RANKS}, not {n_ranks}"
        )
    memory = about.get("peak_memory")
    if memory is not None:
        if not isinstance(memory, list) or len(memory) != n_ranks:
            raise ValueError(
                f"otherData.peak_memory must be a number for each of the {n_ranks}"
                f" ranks, not {shown(memory)}"
            )
        memory = np.array(
            [
                plain_number(f"otherData.peak_memory[{rank}]", size, "Leave all out")
                for rank, size in enumerate(memory)
            ]
        )
    bound = about.get("bound")
    if bound is not None:
        bound = plain_number("otherData.bound", bound, "Leave it out")
    n_minibatches = plain_integer(
        "otherData.n_minibatches", about.get("n_minibatches", 1)
    )
    if n_minibatches < 1:
        raise ValueError(
            f"otherData.n_minibatches must be at least 1, not {n_minibatches}"
        )
    return {
        "n_minibatches": n_minibatches,
        "name": about["name"],
        "n_ranks": n_ranks,
        "peak_memory": memory,
        "bound": bound,
    }


def _event(what: str, entry: dict[str, Any], n_ranks: int) -> Event:
    for name, kinds in _FIELDS.items():
        if name not in entry:
            raise ValueError(f"{what}.{name} is missing")
        if type(entry[name]) not in kinds:
            words = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{what}.{name} is {shown(entry[name])}: expected {words}")
    rank, start, seconds = entry["tid"], entry["ts"], entry["dur"]
    if not 0 <= rank < n_ranks:
        raise ValueError(f"{what}.tid is {shown(rank)}, but there are {n_ranks} ranks")
    for name in ("ts", "dur"):
        if not -LIMIT < entry[name] < LIMIT:
            raise ValueError(
                f"{what}.{name} is {shown(entry[name])}: it must be finite"
            )
    return Event(
        rank, entry["name"], start / 1e6, (start + seconds) / 1e6, entry["cat"]
    )
