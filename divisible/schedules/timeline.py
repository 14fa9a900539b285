"""Timelines: the events of each rank and their times, predicted or measured.

`divisible.schedules.simulator.simulate` returns a `Timeline`, the runner records one;
both are compared, saved and drawn by the same code. Events are kept as columns of
numbers and become objects only when they are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from divisible.records import reading_json
from divisible.schedules.actions import (
    FORWARD,
    KINDS,
    Action,
    Transfer,
    parse_operation,
)
from divisible.schedules.comparison import Comparison
from divisible.schedules.critical_path import critical_path
from divisible.schedules.events import CATEGORIES, RECEIVE, SEND, Event
from divisible.schedules.held import in_layers_of_ranks
from divisible.schedules.plot import plot_timeline
from divisible.schedules.trace import read_trace, save_trace
from divisible.terminal_text import printable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_NONE = -1
# What a wait is for, too.
_DIRECTIONS = ("send", "receive")
_COLUMNS = {
    "rank": np.int32,
    "category": np.int8,
    "stage": np.int32,
    "kind": np.int8,
    "microbatch": np.int32,
    "peer": np.int32,
    "direction": np.int8,
    "label": np.int32,
    "start": np.float64,
    "end": np.float64,
}


class Timeline:
    """Events of all ranks on one clock.

    Args:
        events: `Event` objects or tuples ``(rank, what, start, end, category)``.
            ``what`` may be text in the notation of `Action` and `Transfer`. The
            category may be left out: it is the action's kind, the message's
            direction, or ``'other'``.
        n_ranks: Number of ranks. Left out, it is read from ``events``.
        name: What to call it in files and pictures.

    Attributes:
        name (str): The label.
        n_ranks (int): Number of ranks.
        rank, category, stage, kind, microbatch, peer, start, end (numpy.ndarray):
            The columns, sorted by rank and start; ``CATEGORIES[category[k]]`` is the
            category of event ``k``, and -1 stands for "none".
        direction (numpy.ndarray): Another column: 0 for messages that are sent, and
            for waiting to send, 1 for those that are received.
        offsets (numpy.ndarray): Rank ``r`` has the events ``offsets[r]`` up to
            ``offsets[r + 1]``.
        peak_memory (numpy.ndarray or None): Bytes held at the peak on each rank, where
            known.

    Raises:
        ValueError: If an event ends before it starts, or a rank or category does not
            exist.

    Example:
        >>> timeline = Timeline([(0, "0F0", 0.0, 1.0), (0, "0B0", 3.0, 4.0)])
        >>> timeline.makespan, timeline.bubble.tolist()
        (4.0, [0.5])
    """

    def __init__(
        self,
        events: Iterable[Event | tuple] = (),
        n_ranks: int | None = None,
        name: str = "timeline",
    ) -> None:
        rows, labels = [], {}
        for rank, what, start, end, *rest in events:
            action, category = (_NONE, _NONE, _NONE), "other"
            peer = direction = label = _NONE
            if isinstance(what, str):
                what = _parse(what)
            if isinstance(what, Transfer):
                action, peer, category = what.action, what.peer, what.direction
                direction = _DIRECTIONS.index(what.direction)
                if what.skip:
                    label = labels.setdefault(what.skip, len(labels))
            elif isinstance(what, Action):
                action, category = what, what.kind
            else:
                label = labels.setdefault(what, len(labels))
            if rest:
                category = rest[0]
            if category not in CATEGORIES:
                raise ValueError(
                    f"rank {rank}, {what}: category {category!r} is none of "
                    f"{', '.join(CATEGORIES)}"
                )
            stage, kind, microbatch = action
            kind = _NONE if kind == _NONE else KINDS.index(kind)
            category = CATEGORIES.index(category)
            place = stage, kind, microbatch, peer, direction, label
            rows.append((rank, category, *place, start, end))
        columns = dict(zip(_COLUMNS, zip(*rows) if rows else [()] * len(_COLUMNS)))
        self._fill(columns, n_ranks, name, tuple(labels))

    @classmethod
    def from_arrays(
        cls,
        rank: ArrayLike,
        category: ArrayLike,
        start: ArrayLike,
        end: ArrayLike,
        n_ranks: int | None = None,
        name: str = "timeline",
        **columns: ArrayLike,
    ) -> Timeline:
        """Builds a timeline from columns, without one object per event.

        Args:
            rank: Integers of shape ``(n_events,)``.
            category: Positions in `CATEGORIES`.
            start: Seconds.
            end: Seconds.
            n_ranks: See the class.
            name: See the class.
            columns: Any of ``stage``, ``kind``, ``microbatch`` and ``peer``; -1
                stands for "none", and so does leaving out the column.

        Returns:
            The timeline.

        Raises:
            ValueError: See the class.
        """
        given = dict(columns, rank=rank, category=category, start=start, end=end)
        joined = {
            column: np.array(given[column], dtype)
            if column in given
            else np.full(len(rank), _NONE, dtype)
            for column, dtype in _COLUMNS.items()
        }
        for direction, category in enumerate((SEND, RECEIVE)):
            joined["direction"][joined["category"] == category] = direction
        timeline = cls.__new__(cls)
        timeline._fill(joined, n_ranks, name, ())
        return timeline

    def _fill(self, columns, n_ranks, name, labels) -> None:
        arrays = {c: np.asarray(columns[c], dtype) for c, dtype in _COLUMNS.items()}
        rank, start, end = arrays["rank"], arrays["start"], arrays["end"]
        if n_ranks is None:
            n_ranks = int(rank.max(initial=-1)) + 1
        wrong = np.flatnonzero((rank < 0) | (rank >= n_ranks) | ~(start <= end))
        if wrong.size:
            at = wrong[0]
            raise ValueError(
                f"event {at} on rank {rank[at]} of {n_ranks} runs from {start[at]} to "
                f"{end[at]} s; ranks start at 0 and events end after they start"
            )
        same = rank[1:] == rank[:-1]
        if not np.all((rank[1:] > rank[:-1]) | (same & (start[1:] >= start[:-1]))):
            # What starts at the same time keeps its order: an event may take no time.
            order = np.lexsort((start, rank))
            arrays = {column: array[order] for column, array in arrays.items()}
        for column, array in arrays.items():
            setattr(self, column, array)
        self._labels = labels
        self.offsets = np.searchsorted(arrays["rank"], np.arange(n_ranks + 1))
        self.n_ranks = n_ranks
        self.name = name
        self.peak_memory: np.ndarray | None = None

    def __len__(self) -> int:
        """Returns the number of events."""
        return self.start.size

    def __getitem__(self, index: int) -> Event:
        what: Action | Transfer | str
        label = self._labels[self.label[index]] if self.label[index] != _NONE else ""
        if self.kind[index] == _NONE:
            what = label or CATEGORIES[self.category[index]]
        else:
            what = Action(
                int(self.stage[index]),
                KINDS[self.kind[index]],
                int(self.microbatch[index]),
            )
            if self.direction[index] != _NONE:
                direction = _DIRECTIONS[self.direction[index]]
                what = Transfer(what, int(self.peer[index]), direction, label)
        return Event(
            int(self.rank[index]),
            what,
            float(self.start[index]),
            float(self.end[index]),
            CATEGORIES[self.category[index]],
        )

    def __iter__(self) -> Iterator[Event]:
        return (self[index] for index in range(len(self)))

    def rank_events(self, rank: int) -> list[Event]:
        """Lists what happened on one rank.

        Args:
            rank: From 0.

        Returns:
            Its events by start.
        """
        return [self[k] for k in range(self.offsets[rank], self.offsets[rank + 1])]

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return float(self.end.max() - self.start.min()) if len(self) else 0.0

    @property
    def busy(self) -> np.ndarray:
        """Seconds each rank computes."""
        compute = self.category < len(KINDS)
        return np.bincount(
            self.rank[compute],
            weights=(self.end - self.start)[compute],
            minlength=self.n_ranks,
        )

    @property
    def bubble_time(self) -> np.ndarray:
        """Seconds each rank does not compute, from first start to last end."""
        return self.makespan - self.busy

    @property
    def bubble(self) -> np.ndarray:
        """The share of the makespan that each rank does not compute, from 0 to 1."""
        return self.bubble_time / self.makespan if self.makespan else self.busy

    @property
    def peak_in_flight(self) -> np.ndarray:
        """For each rank the most microbatches between F and B or I.

        The unit is that of :class:`divisible.schedules.held.Report`: of a rank's ``n``
        stages each holds an ``n``-th of a microbatch.
        """
        return self._peak([1, -1, -1, 0, 0])

    @property
    def peak_held(self) -> np.ndarray:
        """For each rank the most microbatches in flight or with a pending W.

        The unit is that of ``peak_in_flight``.
        """
        return self._peak([1, -1, 0, -1, 0])

    def _peak(self, change: list[int]) -> np.ndarray:
        changes = np.array([*change, 0, 0, 0, 0])[self.category]
        computations = self.category[self.category < len(KINDS)]
        if computations.max(initial=FORWARD) == FORWARD:
            changes[:] = 0  # evaluation holds nothing
        compute = np.where(self.category < len(KINDS), self.stage, _NONE)
        counts, n_stages = [], []
        for begin, end in zip(self.offsets[:-1], self.offsets[1:]):
            counts.append(np.cumsum(changes[begin:end]).max(initial=0))
            stages = np.unique(compute[begin:end])
            n_stages.append((stages != _NONE).sum())
        return in_layers_of_ranks(counts, n_stages)

    @property
    def critical_path(self) -> list[Event]:
        """The chain of events that decides the makespan, from first to last.

        `divisible.schedules.critical_path` says how it is found.
        """
        return [self[k] for k in critical_path(self)]

    def compare(self, predicted: Timeline) -> Comparison:
        """Says where this step lost time against its prediction.

        Args:
            predicted: The timeline of the same schedule, simulated.

        Returns:
            Seconds by rank and cause, and by stage.

        Raises:
            ValueError: If the two have not the same stages and microbatches on the
                same ranks.
        """
        return Comparison(self, predicted)

    def __repr__(self) -> str:
        return (
            f"<Timeline {printable(self.name)}: {self.n_ranks} ranks,"
            f" {len(self)} events, {self.makespan:.6g} s>"
        )

    def summary(self) -> str:
        """Describes each rank in a line.

        Returns:
            A table of text.

        Example:
            >>> print(Timeline([(0, "0F0", 0, 1), (0, "0B0", 2, 4)]).summary())
            timeline: 4 s on 1 rank
            rank  compute s  bubble  in flight
               0          3   25.0%          1
        """
        lines = [
            f"{self.name}: {self.makespan:.6g} s on {self.n_ranks} "
            f"rank{'s' * (self.n_ranks != 1)}",
            "rank  compute s  bubble  in flight",
        ]
        for rank, (busy, bubble, peak) in enumerate(
            zip(self.busy, self.bubble, self.peak_in_flight)
        ):
            lines.append(f"{rank:4d} {busy:10.6g} {bubble:7.1%} {peak:10.4g}")
        return printable("\n".join(lines), keeps_lines=True)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the timeline in Chrome's trace format, one row per rank.

        ``chrome://tracing`` and https://ui.perfetto.dev show such files.

        Args:
            path: Where to write JSON. The file appears only when it is complete.
        """
        save_trace(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Timeline:
        """Reads what `save` wrote.

        Args:
            path: A JSON file.

        Returns:
            The timeline; times are equal up to rounding.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If the file is not in that format; the message names the field.
        """
        with reading_json(path, "a timeline saved by Timeline.save") as content:
            events, about = read_trace(content)
            timeline = cls(events, about["n_ranks"], about["name"])
        timeline.peak_memory = about["peak_memory"]
        return timeline

    def plot(self, path: str | os.PathLike, title: str | None = None) -> None:
        """Draws the timeline; needs matplotlib.

        Args:
            path: Where to write; the ending gives the format (``.png``, ``.svg`` …).
            title: Above the picture; name and makespan by default.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        plot_timeline(self, path, title)


def _parse(text: str) -> Action | Transfer | str:
    try:
        return parse_operation(text)
    except ValueError:
        return text
