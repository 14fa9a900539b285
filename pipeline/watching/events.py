"""The events of a run: starts and ends, snapshots, moves of layers, slow ranks."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from divisible.records import plain_number, plain_text, read_lines
from divisible.terminal_text import printable
from pipeline.rebalancing.extension import LOG_NAME
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.finding import Search
from pipeline.watching.journal import NAME, JournalEntry, read_journal
from pipeline.watching.status_files import FOLDER

_REMEDY = "Leave the line out"


class RunEvent(NamedTuple):
    """An event of a run.

    Attributes:
        time: Seconds since 1970.
        kind: ``'start'``, ``'end'``, ``'move'``, ``'slow'``, ``'snapshot'`` or
            ``'supervisor'``.
        text: One line of words for people.
    """

    time: float
    kind: str
    text: str


def journal_of(run: Path) -> list[JournalEntry]:
    """Returns the entries of a run's journal; none if it cannot be read."""
    with contextlib.suppress(OSError, ValueError), _quiet():
        return read_journal(run / FOLDER / NAME)
    return []


def events_of(run: Path) -> list[RunEvent]:
    """Returns the events of a run, the oldest first.

    They come from its journal, its snapshots, and the log of ``divisible run
    --keep-going`` if that is in the run's folder. Logs and snapshots that cannot be
    read are left out.

    Args:
        run (Path): Folder of the run.
    """
    found = [_event(entry) for entry in journal_of(run)]
    found += [*_snapshots(run), *_ends(run)]
    return sorted(found)


def _event(entry: JournalEntry) -> RunEvent:
    first = entry.text.partition("\n")[0]
    words = {
        "start": f"begins: {first}",
        "end": f"ends: {first}",
    }.get(entry.event, first)
    step = entry.facts.get("step")
    where = f"step {step:,}: " if isinstance(step, int) and step else ""
    return RunEvent(entry.time, entry.event, f"{where}{words}")


def _snapshots(run: Path) -> Iterator[RunEvent]:
    with contextlib.suppress(SnapshotError):
        for snapshot in Search(run, warn=lambda words: None).find():
            name = printable(os.path.basename(snapshot.path))
            yield RunEvent(snapshot.time, "snapshot", f"snapshot {name}")


def _ends(run: Path) -> Iterator[RunEvent]:
    """Yields the ends of starts, and waits, that a supervisor has logged."""
    for path in sorted(run.glob("*.jsonl")):
        # A pipe might be read for ever.
        if path.name != LOG_NAME and path.is_file():
            with contextlib.suppress(OSError, ValueError), _quiet():
                yield from filter(None, read_lines(path, "an end or a wait", _end))


def _end(fields: dict[str, Any]) -> RunEvent | None:
    if plain_text("event", fields.get("event")) not in ("end", "wait"):
        return None
    when = plain_number("time", fields.get("time"), _REMEDY)
    # The line for people is missing at the last end.
    text = fields.get("line")
    if text is None:
        kind, reason = (plain_text(n, fields.get(n)) for n in ("kind", "reason"))
        text = f"the ranks have ended, {kind}: {reason}"
    return RunEvent(when, "supervisor", printable(plain_text("line", text)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leaves out warnings of lines that a full disk has cut."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
