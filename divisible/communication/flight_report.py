"""Conclusions from flight records: the last lines, and which rank waits for which.

::

    16:48:59.120   1  4 step   ends step
    16:48:59.121   0  5 step   waits for 0B0<1
    16:48:59.121   2  5 step   waits for 1F0<1
    rank 1 is behind: after call 4, step, it made no other
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, NamedTuple

from divisible.communication import flight_files
from divisible.communication.errors import in_words
from divisible.communication.flight_record import (
    BEGIN,
    CALL,
    FAILURE,
    NOBODY,
    RECEIVE,
    WAIT,
    FlightEntry,
    Log,
    own_flight_record,
)
from divisible.communication.flight_table import labels_of, rows, text_of

# A report at the end has lines of this many ranks, and this many lines of each.
_MOST_RANKS, _LINES_OF_EACH = 16, 3
_SECONDS_TO_READ, _SECONDS_BETWEEN_LOOKS = 2, 0.005


class RankState(NamedTuple):
    """The state of a rank at the end of its record.

    Attributes:
        rank (int): The rank.
        pipeline (int): The pipeline that it used last.
        call (int): The number of its last call of that pipeline.
        call_name (str): Name of that call, if the record goes back so far.
        calls (dict): The number of the last recorded call, by pipeline.
        doing (FlightEntry or None): The entry of the last beginning without an end, or
            of the first failure; ``None`` between calls.
        time (float): Time of the last entry.
    """

    rank: int
    pipeline: int
    call: int
    call_name: str
    calls: dict[int, int]
    doing: FlightEntry | None
    time: float

    @property
    def waits_for(self) -> int:
        """The rank for which this one waits, `EVERYBODY` or `NOBODY`."""
        is_waiting = self.doing is not None and self.doing.kind in (RECEIVE, WAIT)
        return self.doing.peer if is_waiting else NOBODY

    def is_ahead_of(self, other: RankState) -> bool:
        """Returns whether the other rank has not begun this rank's last call."""
        return self.call > other.calls.get(self.pipeline, 0)


def state(log: Log) -> RankState:
    """Returns the state of a rank at the end of its record."""
    begun: list[FlightEntry] = []
    call, call_name, pipeline, last = 0, "", 0, 0.0
    calls: dict[int, int] = {}
    for entry in log.entries:
        last, pipeline = entry.time, entry.pipeline
        calls[pipeline] = entry.call
        if entry.kind == CALL:
            # Anything that began before a call, and did not end, has failed.
            begun.clear()
            call, call_name = entry.call, entry.text
        elif entry.call != call:
            call, call_name = entry.call, ""
        if entry.phase == BEGIN or entry.kind == FAILURE:
            begun.append(entry)
        elif begun and begun[-1].kind == entry.kind:
            begun.pop()
    failed = [entry for entry in begun if entry.kind == FAILURE]
    doing = (failed or begun[-1:] or [None])[0]
    return RankState(log.rank, pipeline, call, call_name, calls, doing, last)


def verdict(logs: Sequence[Log], are_all: bool = True) -> list[str]:
    """Finds the ranks that are behind, and returns a line of text for each rank.

    A rank is behind if it waits for no other. If all ranks wait, those are behind that
    have not begun a call of another rank, and are in no call that others have not
    begun.

    Args:
        logs: The records of some or all ranks of a job.
        are_all (bool): Whether the records of all ranks were looked up, so that a
            missing record is worth a line.

    Example:
        >>> from divisible.communication.flight_record import ACTION, BEGIN
        >>> from divisible.communication.flight_record import FlightRecord
        >>> record = FlightRecord()
        >>> record.begin_call(1, 5, "step")
        >>> record.write(ACTION, BEGIN, "1F0")
        >>> verdict([record.log()])
        ['rank 0 is behind: in call 5, step, it began 1F0, and did not end it']
    """
    states = [state(log) for log in logs]
    behind = [each for each in states if each.waits_for == NOBODY]
    if not behind:
        behind = [each for each in states if _is_behind(each, states)]
    labels = labels_of(logs)
    said = [f"rank {each.rank} is behind: {_at(each, labels)}" for each in behind]
    waiting = [each for each in states if each not in behind]
    said += [f"rank {each.rank} {_at(each, labels)}" for each in waiting]
    return said + _without_record(logs) if are_all else said


def _without_record(logs: Sequence[Log]) -> list[str]:
    n_ranks, found = max(log.n_ranks for log in logs), {log.rank for log in logs}
    n_missing = n_ranks - len(found)
    if n_missing < 1:
        return []
    # Many ranks may be missing, and a damaged record may have any number of ranks.
    missing = (rank for rank in range(n_ranks) if rank not in found)
    first = list(itertools.islice(missing, _MOST_RANKS))
    n_more = n_missing - len(first)
    whom = f"{in_words(first)} and {n_more} more" if n_more else in_words(first)
    has = "has" if n_missing == 1 else "have"
    return [f"{whom} {has} no record here: ended regularly, or on another host"]


def _is_behind(each: RankState, states: Sequence[RankState]) -> bool:
    if any(each.is_ahead_of(other) for other in states):
        # With two pipelines, each rank may be ahead in one: they make different calls.
        return False
    return any(other.is_ahead_of(each) for other in states)


def _at(each: RankState, labels: dict[int, str]) -> str:
    label = labels.get(each.pipeline)
    call = f"call {each.call} of pipeline {label}" if label else f"call {each.call}"
    if each.call_name:
        call += f", {each.call_name}"
    doing = each.doing
    if doing is None:
        if not each.call:
            return "it made no call yet"
        return f"after {call}, it made no other"
    where = f"in {call}, " if each.call else ""
    if doing.kind == FAILURE:
        return f"{where}it failed: {doing.text}"
    if each.waits_for != NOBODY:
        return f"waits{', ' if where else ''}{where.rstrip(', ')}, for {text_of(doing)}"
    if doing.kind == CALL:
        return f"it began {call}, and is between the actions of it"
    return f"{where}it began {text_of(doing)}, and did not end it"


def processes(logs: Sequence[Log]) -> list[str]:
    """Returns the process of each rank, and its memory when its last call began.

    Launchers give only the number of a process that was killed.

    Args:
        logs: The records of some or all ranks of a job. Only the first ones have a
            line.
    """
    return [_process(log) for log in logs[:_MOST_RANKS]]


def _process(log: Log) -> str:
    calls = [
        entry for entry in log.entries if (entry.kind, entry.phase) == (CALL, BEGIN)
    ]
    text = f"rank {log.rank} was process {log.process} on {log.host}"
    if not calls:
        return text
    held = f"{calls[-1].n_bytes / 1e9:.2f} GB at most when call {calls[-1].call} began"
    return f"{text}, and held {held}"


def print_at_end(has_lines: bool = True) -> None:
    """Prints the last lines of this rank, and of ranks whose records can be read.

    A script without a pipeline has only its failure in the record. Its traceback is
    enough.

    Args:
        has_lines (bool): Whether to print lines, or only the directory of the records.
    """
    folder = flight_files.job_directory()
    mine = own_flight_record.log()
    if folder is None and all(entry.kind == FAILURE for entry in mine.entries):
        return
    if not has_lines:
        if folder is not None:
            sys.stderr.write(f"What ranks did: divisible flight-record {folder}\n\n")
        return
    others, are_all = ([], True) if folder is None else _others(folder, mine)
    logs = sorted([mine, *others], key=lambda log: log.rank)
    if not any(log.entries for log in logs):
        return
    logs = [mine, *(log for log in logs if log is not mine)]
    sys.stderr.write(as_text(logs, folder, are_all))


def as_text(logs: Sequence[Log], folder: Path | None, are_all: bool = True) -> str:
    """Returns the last lines of some ranks, and the ranks that are behind.

    Args:
        logs: The records of some or all ranks. Only the first ones have lines.
        folder (Path or None): The directory of the records.
        are_all (bool): Whether the records of all ranks were looked up.
    """
    table = rows(logs[:_MOST_RANKS], _LINES_OF_EACH)
    width = max([12, *(len(row.call) for row in table)])
    lines = ["The last of what ranks did, from their flight records:"]
    lines += [
        f"  {row.time} {row.rank:>4}  {row.call:<{width}} {row.event}" for row in table
    ]
    in_order = sorted(logs, key=lambda log: log.rank)
    lines += [f"  {text}" for text in verdict(in_order, are_all)[:_MOST_RANKS]]
    if not are_all:
        lines.append("  the records of other ranks could not be read in time")
    if folder is not None:
        lines.append(f"  all of it: divisible flight-record {folder}")
    return "\n".join([*lines, "", ""])


def _others(folder: Path, mine: Log) -> tuple[list[Log], bool]:
    """Returns the records of other ranks, and whether all were read in time."""
    found: list[Log] = []
    ends: list[bool] = []

    def look() -> None:
        with contextlib.suppress(Exception):
            for path in flight_files.files(folder):
                with contextlib.suppress(OSError, ValueError):
                    log = flight_files.read_file(path)
                    if log.rank != mine.rank:
                        found.append(log)
        ends.append(True)

    if flight_files.is_on_this_host():
        look()
    else:
        _try_in_time(look, ends)
    return sorted(found, key=lambda log: log.rank), bool(ends)


def _try_in_time(look: Callable[[], None], ends: Sequence[bool]) -> None:
    """Runs a function in a thread, if there can be one, and waits shortly for its end.

    A file system that does not answer may be the reason for the end of the run. This
    rank's own record must be printed all the same.
    """
    deadline = time.monotonic() + _SECONDS_TO_READ
    # Thread.start() would wait without an end for a thread that finds no memory.
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(look, ())
        while not ends and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
