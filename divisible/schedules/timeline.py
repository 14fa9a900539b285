"""Timelines: the events of each rank and their times, predicted or measured.

`divisible.schedules.simulator.simulate` returns a `Timeline`, the runner records one;
both are compared, saved and drawn by the same code. Events are kept as columns of
numbers and become objects only when they are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape

import numpy as np
from numpy.typing import ArrayLike

from divisible.records import reading_json
from divisible.schedules.actions import KINDS, Action, Transfer, parse_operation
from divisible.schedules.comparison import Comparison
from divisible.schedules.critical_path import critical_path
from divisible.schedules.event_table import COLUMNS, DIRECTIONS, NONE, EventTable
from divisible.schedules.events import CATEGORIES, RECEIVE, SEND, Event
from divisible.schedules.lower_bound import above
from divisible.schedules.plot import plot_timeline, timeline_svg
from divisible.schedules.trace import read_trace, save_trace
from divisible.terminal_text import printable


class Timeline(EventTable):
    """Events of all ranks on one clock.

    Args:
        events: `Event` objects or tuples ``(rank, what, start, end, category)``.
            ``what`` may be text in the notation of `Action` and `Transfer`. The
            category may be left out: it is the action's kind, the message's
            direction, or ``'other'``.
        n_ranks: Number of ranks. Left out, it is read from ``events``.
        name: Label of the timeline in files and pictures.

    Attributes:
        name (str): The label.
        n_ranks (int): Number of ranks.
        rank, category, stage, kind, microbatch, count, peer, start, end:
            The columns as arrays, sorted by rank and start; ``CATEGORIES[category[k]]``
            is the category of event ``k``, and -1 stands for "none".
        direction (numpy.ndarray): Another column: 0 for sent messages and waits to
            send, 1 for received messages and waits for them.
        offsets (numpy.ndarray): Rank ``r`` has the events ``offsets[r]`` up to
            ``offsets[r + 1]``.
        peak_memory (numpy.ndarray or None): Bytes held at the peak on each rank, where
            known.
        n_minibatches (int): Number of minibatches.
        find_bound (callable or None): Function that returns the seconds of ``bound``.
            It is called when ``bound`` is first read.

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
            action, category = (NONE, NONE, NONE), "other"
            peer = direction = label = NONE
            if isinstance(what, str):
                what = _parse(what)
            if isinstance(what, Transfer):
                action, peer, category = what.action, what.peer, what.direction
                direction = DIRECTIONS.index(what.direction)
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
            count = 1
            if isinstance(microbatch, range):
                microbatch, count = microbatch.start, len(microbatch)
            kind = NONE if kind == NONE else KINDS.index(kind)
            category = CATEGORIES.index(category)
            place = stage, kind, microbatch, count, peer, direction, label
            rows.append((rank, category, *place, start, end))
        columns = dict(zip(COLUMNS, zip(*rows) if rows else [()] * len(COLUMNS)))
        super().__init__(columns, n_ranks, name, labels)

    @classmethod
    def from_arrays(
        cls,
        rank: ArrayLike,
        category: ArrayLike,
        start: ArrayLike,
        end: ArrayLike,
        n_ranks: int | None = None,
        name: str = "timeline",
        labels: Iterable[str] = (),
        **columns: ArrayLike,
    ) -> Timeline:
        """Builds a timeline from columns, without one object per event.

        Args:
            rank: Integers of shape ``(n_events,)``.
            category: Positions in `CATEGORIES`.
            start: Start of each event, in seconds.
            end: End of each event, in seconds.
            n_ranks: See the class.
            name: See the class.
            labels: Texts of events that are neither actions nor messages.
            columns: Any of ``stage``, ``kind``, ``microbatch``, ``count``, ``peer`` and
                ``label``, which has positions in ``labels``. -1 stands for "none", and
                so does leaving out the column. Without ``count`` each event has one
                microbatch.

        Returns:
            The timeline.

        Raises:
            ValueError: See the class.
        """
        given = dict(columns, rank=rank, category=category, start=start, end=end)
        joined = {
            column: np.array(given[column], dtype)
            if column in given
            else np.full(len(rank), 1 if column == "count" else NONE, dtype)
            for column, dtype in COLUMNS.items()
        }
        for direction, category in enumerate((SEND, RECEIVE)):
            joined["direction"][joined["category"] == category] = direction
        timeline = cls.__new__(cls)
        EventTable.__init__(timeline, joined, n_ranks, name, labels)
        return timeline

    @property
    def critical_path(self) -> list[Event]:
        """The chain of events that decides the makespan, from first to last.

        `divisible.schedules.critical_path` describes the search.
        """
        return [self[k] for k in critical_path(self)]

    def compare(self, predicted: Timeline) -> Comparison:
        """Compares this step with its prediction, to show where it lost time.

        Args:
            predicted: The timeline of the same schedule, simulated.

        Returns:
            The lost seconds by rank and cause, and the seconds of each stage.

        Raises:
            ValueError: If the two timelines have not the same stages and microbatches
                on the same ranks.
        """
        return Comparison(self, predicted)

    def __repr__(self) -> str:
        return (
            f"<Timeline {printable(self.name)}: {self.n_ranks} ranks,"
            f" {len(self)} events, {self.makespan:.6g} s>"
        )

    def _repr_html_(self) -> str:
        """Returns the picture as a notebook shows it; text without matplotlib."""
        try:
            return timeline_svg(self)
        except ImportError:
            return f"<pre>{escape(self.summary())}</pre>"

    def summary(self) -> str:
        """Describes each rank in a line.

        Returns:
            A table of text. Where the bound is known, there is a line with it.

        Example:
            >>> print(Timeline([(0, "0F0", 0, 1), (0, "0B0", 2, 4)]).summary())
            timeline: 4 s on 1 rank
            rank  compute s  bubble  in flight
               0          3   25.0%          1
        """
        lines = [
            f"{self.name}: {self.makespan:.6g} s on {self.n_ranks} "
            f"rank{'s' * (self.n_ranks != 1)}"
        ]
        if self.gap is not None:
            lines.append(f"{above(self.gap)}, {self.bound:.6g} s")
        lines.append("rank  compute s  bubble  in flight")
        for rank, (busy, bubble, peak) in enumerate(
            zip(self.busy, self.bubble, self.peak_in_flight)
        ):
            lines.append(f"{rank:4d} {busy:10.6g} {bubble:7.1%} {peak:10.4g}")
        return printable("\n".join(lines), keeps_lines=True)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the timeline in Chrome's trace format, one row per rank.

        ``chrome://tracing`` and https://ui.perfetto.dev show such files.

        Args:
            path: The JSON file to write. The file appears only when it is complete.
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
        timeline.bound = about["bound"]
        timeline.n_minibatches = about["n_minibatches"]
        return timeline

    def plot(self, path: str | os.PathLike, title: str | None = None) -> None:
        """Draws the timeline; needs matplotlib.

        Args:
            path: The file to write. Its ending gives the format (``.png``, ``.svg`` …).
            title: Title above the picture; name and makespan by default.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        plot_timeline(self, path, title)


def _parse(text: str) -> Action | Transfer | str:
    try:
        return parse_operation(text)
    except ValueError:
        return text
