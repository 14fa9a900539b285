"""The table of flight records: the events of all ranks, by time.

::

    16:48:59.120   1  4 step   ends step
    16:48:59.121   0  5 step   waits for 0B0<1
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from divisible.communication.flight_record import (
    ACTION,
    BEGIN,
    CALL,
    END,
    EVERYBODY,
    FAILURE,
    RECEIVE,
    SEND,
    WAIT,
    FlightEntry,
    Log,
)

_WORDS = {
    (CALL, BEGIN): "begins {text}",
    (CALL, END): "ends {text}",
    (ACTION, BEGIN): "begins {text}",
    (ACTION, END): "ends {text}",
    (SEND, BEGIN): "sends {text}, {n_bytes} bytes",
    (SEND, END): "has sent {text}",
    (RECEIVE, BEGIN): "waits for {text}",
    (RECEIVE, END): "has {text}, {n_bytes} bytes",
    (WAIT, BEGIN): "waits for {text}",
    (WAIT, END): "has waited for {text}",
    (FAILURE, END): "fails: {text}",
}


class Row(NamedTuple):
    """One line of the table."""

    time: str
    rank: str
    call: str
    event: str


def rows(logs: Sequence[Log], n_lines: int) -> list[Row]:
    """Returns the last lines of each rank's record, in the order of time.

    Args:
        logs: The records of the ranks.
        n_lines (int): Number of lines for each rank.
    """
    labels = labels_of(logs)
    lines = sorted(
        (entry.time, log.rank, entry.number, row)
        for log in logs
        for entry, row in list(_rows_of(log, labels))[-n_lines:]
    )
    return [row for *_, row in lines]


def labels_of(logs: Sequence[Log]) -> dict[int, str]:
    """Returns short names of pipelines, for people. A single pipeline needs no name."""
    pipelines = {entry.pipeline for log in logs for entry in log.entries} - {0}
    if len(pipelines) == 1:
        return {}
    return {pipeline: f"{pipeline:08x}"[:4] for pipeline in pipelines}


def _rows_of(log: Log, labels: dict[int, str]) -> Iterator[tuple[FlightEntry, Row]]:
    call_name = ""
    for entry in log.entries:
        if entry.kind == CALL:
            call_name = entry.text
        clock = time.strftime("%H:%M:%S", time.localtime(entry.time))
        words = _WORDS.get((entry.kind, entry.phase), "{text}")
        event = words.format(text=text_of(entry), n_bytes=f"{entry.n_bytes:,}")
        label = f"{labels[entry.pipeline]}:" if entry.pipeline in labels else ""
        yield (
            entry,
            Row(
                f"{clock}.{int(entry.time % 1 * 1000):03}",
                str(log.rank),
                f"{label}{entry.call} {call_name}".rstrip() if entry.call else "",
                event,
            ),
        )


def text_of(entry: FlightEntry) -> str:
    """Returns the text of an entry; for a wait, with the ranks that are waited for."""
    is_of_all = entry.kind == WAIT and entry.peer == EVERYBODY
    return f"all ranks {entry.text}" if is_of_all else entry.text
