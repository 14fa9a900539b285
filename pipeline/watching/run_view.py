"""The state of a run, as its files show it to another process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from divisible.communication import flight_files
from divisible.communication.errors import in_words
from divisible.communication.flight_record import (
    ACTION,
    CALL,
    FAILURE,
    SEND,
    own_flight_record,
)
from divisible.communication.flight_report import RankState, state
from divisible.communication.flight_table import text_of
from pipeline.watching.events import RunEvent, events_of
from pipeline.watching.run_line import bubble, duration
from pipeline.watching.status_files import (
    FOLDER,
    RankStatus,
    Statuses,
    read_statuses,
)

# A rank whose state is older than this, and than some steps, may have stopped.
_SILENT, _STEPS = 10.0, 5
# A state this much older than the next one should be may be of a process that is gone.
_OLD = 2.0
# Seconds between two looks for events, which are many files.
_BETWEEN_EVENTS = 5.0
_VERBS = {CALL: "is between actions of", ACTION: "computes", SEND: "sends"}


class RunView(NamedTuple):
    """All that is known of a run.

    Attributes:
        run: Folder of the run.
        time: Seconds since 1970.
        statuses: The states of the ranks.
        doing: Words for what a rank does now, by rank.
        events: The events, the oldest first.
    """

    run: Path
    time: float
    statuses: Statuses
    doing: dict[int, str]
    events: Sequence[RunEvent]

    @property
    def ranks(self) -> list[RankStatus]:
        """The states of the ranks, by rank."""
        return self.statuses.ranks

    @property
    def chief(self) -> RankStatus:
        """The state with what is known of all ranks, which is rank 0's."""
        return self.ranks[0]

    @property
    def has_ended(self) -> bool:
        """Whether all ranks that are known have written their end."""
        return all(each.state != "runs" for each in self.ranks)

    @property
    def notices(self) -> list[str]:
        """Sentences about slow, missing and silent ranks, and about failures."""
        found = [*self.chief.slow, *self.statuses.faults]
        if missing := self.statuses.missing:
            has = "has" if len(missing) == 1 else "have"
            found.append(
                f"{in_words(missing)} {has} no state in this file system: on another"
                f" host, or not started yet"
            )
        by_reason: dict[str, list[int]] = {}
        for each in self.ranks:
            # The first line of a screen has the state of rank 0.
            if each.state not in ("runs", "finished", self.chief.state):
                by_reason.setdefault(each.state, []).append(each.rank)
        for reason, ranks in by_reason.items():
            has = "has" if len(ranks) == 1 else "have"
            found.append(f"{in_words(ranks)} {has} ended: {reason}")
        for each in self.ranks:
            if is_gone(each, self.time):
                found.append(
                    f"rank {each.rank} has ended without a word: process"
                    f" {each.process} is gone"
                )
            elif is_silent(each, self.time):
                found.append(
                    f"rank {each.rank} on {each.host} has written nothing for"
                    f" {duration(self.time - each.time)}: it waits, or a step takes so"
                    f" long"
                )
        return found

    def to_json(self) -> dict[str, Any]:
        """Returns the view as dictionaries, lists, texts and finite numbers."""
        return {
            "run": str(self.run),
            "time": self.time,
            "state": self.chief.state,
            "n_steps": self.chief.n_steps,
            "epoch": self.chief.epoch,
            "steps_per_second": self.chief.steps_per_second,
            "samples_per_second": self.chief.samples_per_second,
            "values": dict(self.chief.values),
            "seconds_left": self.chief.seconds_left,
            "bubble": bubble(self.ranks),
            "planned_bubble": self.chief.planned_bubble,
            "planned_step": self.chief.planned_step,
            "notices": self.notices,
            "ranks": [_row(each, self.doing.get(each.rank)) for each in self.ranks],
            "events": [event._asdict() for event in self.events[-_MOST_EVENTS:]],
        }


# The newest events in the JSON.
_MOST_EVENTS = 20


def _row(status: RankStatus, doing: str | None) -> dict[str, Any]:
    now = status.now
    return {
        "rank": status.rank,
        "host": status.host,
        "process": status.process,
        "time": status.time,
        "n_steps": status.n_steps,
        "stages": dict(status.stages),
        "memory": status.memory,
        "seconds": None if now is None else now._asdict(),
        "slowness": dict(status.slowness),
        "doing": doing,
    }


class RunWatch:
    """Reads the files of a run again and again.

    Args:
        run: Folder of the run.
    """

    def __init__(self, run: str | os.PathLike) -> None:
        self._run = Path(run)
        self._events: list[RunEvent] = []
        self._next_events = 0.0

    def look(self) -> RunView:
        """Returns the state of the run now.

        Raises:
            ValueError: If there are no states of ranks.
        """
        try:
            statuses = read_statuses(self._run / FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            statuses = Statuses([], [])
        if not statuses.ranks:
            faults = "".join(f"; {fault}" for fault in statuses.faults)
            raise ValueError(
                f"{self._run} has no states of ranks{faults}. The script writes them"
                f" with trainer.extend(ProgressLine()), or in a loop of its own with"
                f" RunStatus; name the folder that it writes to"
            )
        now = time.time()
        if now >= self._next_events:
            self._events = events_of(self._run)
            self._next_events = now + _BETWEEN_EVENTS
        doing = {each.rank: doing_of(each, now) for each in statuses.ranks}
        return RunView(self._run, now, statuses, doing, self._events)


def is_silent(status: RankStatus, now: float) -> bool:
    """Returns whether a rank should have written its state since."""
    if status.state != "runs":
        return False
    step = 0.0 if not status.steps_per_second else 1 / status.steps_per_second
    longest = max(_SILENT, _STEPS * step) + status.between_files
    return now - status.time > longest


def is_gone(status: RankStatus, now: float) -> bool:
    """Returns whether the process of a rank has ended and has not written its end."""
    return (
        status.state == "runs"
        and status.host == own_flight_record.host
        and now - status.time > _OLD + status.between_files
        and not _is_alive(status.process)
    )


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def doing_of(status: RankStatus, now: float) -> str:
    """Returns what a rank does now, from its flight record on this host.

    Args:
        status (RankStatus): The state of the rank.
        now (float): Seconds since 1970.
    """
    if status.state != "runs":
        return "has ended"
    if is_gone(status, now):
        return "is gone"
    if not status.flight_record or status.host != own_flight_record.host:
        return ""
    try:
        log = flight_files.read_file(Path(status.flight_record))
    except (OSError, ValueError):
        return ""
    # The file of an earlier process may remain.
    return _words(state(log), now) if log.process == status.process else ""


def _words(at: RankState, now: float) -> str:
    doing = at.doing
    if doing is None:
        words = "is between calls"
    elif doing.kind == FAILURE:
        return f"has failed: {doing.text}"
    else:
        verb = _VERBS.get(doing.kind, "waits for")
        words = f"{verb} {text_of(doing)}"
    seconds = now - at.time
    return f"{words}, for {duration(seconds)}" if seconds >= 2 else words
