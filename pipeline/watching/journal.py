"""The journal of a run: its starts and ends, its choices, and its slow ranks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from divisible.records import plain_number, plain_text, read_lines
from divisible.side_files import append_line
from divisible.terminal_text import printable

#: The name of the file in the folder of the status files.
NAME = "journal.jsonl"
_REMEDY = "Leave the line out"


class JournalEntry(NamedTuple):
    """Something that happened in a run.

    Attributes:
        time: Seconds since 1970.
        event: ``'start'``, ``'end'``, ``'slow'``, ``'warning'``.
        text: Words for people, maybe in several lines.
        facts: Facts by name.
    """

    time: float
    event: str
    text: str
    facts: Mapping[str, Any]


def add_to_journal(
    folder: Path, event: str, text: str, when: float | None = None, **facts: Any
) -> None:
    """Adds an entry to the journal of a run.

    Args:
        folder (Path): Folder of the run's status files.
        event (str): Kind of the event; see :class:`JournalEntry` for all arguments.
        text (str): Words for people.
        when (float or None): Seconds since 1970; now by default.
        facts: Values that JSON can have.

    Raises:
        OSError: If the journal cannot be written.
    """
    when = time.time() if when is None else when
    content = {"time": round(when, 3), "event": event, "text": text, "facts": facts}
    append_line(folder / NAME, json.dumps(content, allow_nan=False))


def read_journal(path: str | os.PathLike) -> list[JournalEntry]:
    """Returns the entries of a journal, in their order; broken lines are left out.

    Raises:
        OSError: If the journal cannot be read.
        ValueError: If no line is an entry.
    """
    return read_lines(path, "an entry of a journal", _entry)


def _entry(fields: dict[str, Any]) -> JournalEntry:
    facts = fields.get("facts", {})
    if not isinstance(facts, dict):
        raise TypeError("facts must have names")
    return JournalEntry(
        plain_number("time", fields.get("time"), _REMEDY),
        printable(plain_text("event", fields.get("event"))),
        printable(plain_text("text", fields.get("text", "")), keeps_lines=True),
        facts,
    )
