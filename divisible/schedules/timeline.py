"""What ran when on which rank, predicted or measured.

`divisible.schedules.simulator.simulate` returns a `Timeline`, the runner records one;
both are compared, saved and drawn by the same code. Events are kept as columns of
numbers and become objects only when they are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from divisible.schedules.actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    KINDS,
    Action,
    Message,
    parse_operation,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: What an event can be. The computations come first, in the order of `KINDS`.
CATEGORIES = (*KINDS, "send", "receive", "wait", "other")
_SEND, _RECEIVE, _WAIT, _OTHER = range(len(KINDS), len(CATEGORIES))
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


class Event(NamedTuple):
    """One bar of a timeline.

    Attributes:
        rank: Where it happened.
        what: The action, the message, or any other text.
        start: Seconds.
        end: Seconds.
        category: One of `CATEGORIES`. A wait for a message names that message.
    """

    rank: int
    what: Action | Message | str
    start: float
    end: float
    category: str


class Timeline:
    """Events of all ranks on one clock.

    Args:
        events: `Event` objects or tuples ``(rank, what, start, end, category)``.
            ``what`` may be text in the notation of `Action` and `Message`. The
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
        columns: dict[str, list] = {column: [] for column in _COLUMNS}
        labels: dict[str, int] = {}
        for rank, what, start, end, *rest in events:
            action, label, category = None, _NONE, "other"
            peer = direction = _NONE
            if isinstance(what, str):
                what = _parse(what)
            if isinstance(what, Message):
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
            columns["rank"].append(rank)
            columns["category"].append(CATEGORIES.index(category))
            columns["stage"].append(_NONE if action is None else action.stage)
            columns["kind"].append(
                _NONE if action is None else KINDS.index(action.kind)
            )
            columns["microbatch"].append(_NONE if action is None else action.microbatch)
            columns["peer"].append(peer)
            columns["direction"].append(direction)
            columns["label"].append(label)
            columns["start"].append(start)
            columns["end"].append(end)
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
        for direction, category in enumerate((_SEND, _RECEIVE)):
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
        what: Action | Message | str
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
                what = Message(what, int(self.peer[index]), direction, label)
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
        """For each rank the most stage-microbatches between F and B or I."""
        return self._peak([1, -1, -1, 0, 0])

    @property
    def peak_held(self) -> np.ndarray:
        """For each rank the most stage-microbatches in flight or with a pending W."""
        return self._peak([1, -1, 0, -1, 0])

    def _peak(self, change: list[int]) -> np.ndarray:
        changes = np.array([*change, 0, 0, 0, 0])[self.category]
        computations = self.category[self.category < len(KINDS)]
        if computations.max(initial=FORWARD) == FORWARD:
            changes[:] = 0  # evaluation holds nothing
        return np.array(
            [
                np.cumsum(changes[begin:end]).max(initial=0)
                for begin, end in zip(self.offsets[:-1], self.offsets[1:])
            ],
            np.int64,
        )

    @property
    def critical_path(self) -> list[Event]:
        """The chain of events that decides the makespan, from first to last.

        From the event that ends last it goes back to what held each event up: the
        one before it on the same rank, or, where the rank had to wait, the one whose
        result it needed. In a timeline without any waits, such as a predicted one, a
        rank had to wait where it was idle. A measured one has a wait for every message,
        also for one that was there already; what ended later held the rank up then::

            rank 0  0F0 0F1
            rank 1      1F0 . . . 1F1     1F0, not 0F1: the path is 0F0, 1F0, 1F1
        """
        if not len(self):
            return []
        recorded = bool((self.category == _WAIT).any())
        # Sums of the same numbers in another order differ by rounding.
        slack = None if recorded else 1e-9 * self.makespan
        # A dictionary for its order; clocks that disagree could lead into a circle.
        path: dict[int, None] = {}
        at: int | None = int(np.argmax(self.end))
        while at is not None and at not in path:
            path[at] = None
            at = self._held_up_by(at, slack)
        return [self[k] for k in reversed(list(path))]

    def _held_up_by(self, at: int, slack: float | None) -> int | None:
        first = self.offsets[self.rank[at]]
        before = at - 1
        while before >= first and self.category[before] == _WAIT:
            before -= 1
        if before < first:
            return self._cause(at)
        if slack is None:
            waited = before < at - 1
        else:
            waited = self.end[before] < self.start[at] - slack
        cause = self._cause(at) if waited else None
        if cause is None:
            return before
        was_there = slack is None and self.end[cause] < self.end[before]
        return before if was_there else cause

    def _cause(self, at: int) -> int | None:
        """Finds the event on another rank that an event needed or met."""
        category, stage = self.category[at], int(self.stage[at])
        microbatch, start = self.microbatch[at], self.start[at]
        if category in (_SEND, _RECEIVE):
            # The other side came later: what did it do before? If it has recorded no
            # message, the receiver waited for the computation.
            peer, kinds = int(self.peer[at]), (self.kind[at],)
            twin = self._find(peer, stage, kinds, microbatch, self.end[at], True)
            if twin is not None:
                return twin - 1 if twin > self.offsets[peer] else None
            if category == _RECEIVE:
                return self._find(peer, stage, kinds, microbatch, self.end[at])
            return None
        if category == FORWARD:
            return self._find(None, stage - 1, (FORWARD,), microbatch, start)
        if category in (BACKWARD, INPUT):
            return self._find(None, stage + 1, (BACKWARD, INPUT), microbatch, start)
        return None

    def _find(
        self, rank, stage, kinds, microbatch, latest, communication=False
    ) -> int | None:
        """Finds the last event of an action that had started by a time."""
        if rank is None:
            rank = self._stage_rank().get(stage)
            if rank is None:
                return None
        begin, end = self.offsets[rank], self.offsets[rank + 1]
        fits = (
            (self.stage[begin:end] == stage)
            & (self.microbatch[begin:end] == microbatch)
            & np.isin(self.kind[begin:end], kinds)
            & (self.start[begin:end] <= latest)
        )
        category = self.category[begin:end]
        if communication:
            fits &= (category == _SEND) | (category == _RECEIVE)
        else:
            fits &= category < len(KINDS)
        found = np.flatnonzero(fits)
        return int(begin + found[-1]) if found.size else None

    def _stage_rank(self) -> dict[int, int]:
        if not hasattr(self, "_stage_ranks"):
            compute = self.category < len(KINDS)
            stages, first = np.unique(self.stage[compute], return_index=True)
            ranks = self.rank[compute][first]
            self._stage_ranks = dict(zip(stages.tolist(), ranks.tolist()))
        return self._stage_ranks

    def __repr__(self) -> str:
        return (
            f"<Timeline {self.name}: {self.n_ranks} ranks, {len(self)} events, "
            f"{self.makespan:.6g} s>"
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
            lines.append(f"{rank:4d} {busy:10.6g} {bubble:7.1%} {peak:10d}")
        return "\n".join(lines)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the timeline in Chrome's trace format, one row per rank.

        ``chrome://tracing`` and https://ui.perfetto.dev show such files.

        Args:
            path: Where to write JSON. The file appears only when it is complete.
        """
        from divisible.schedules.trace import save_trace

        save_trace(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Timeline:
        """Reads what `save` wrote.

        Args:
            path: A JSON file.

        Returns:
            The timeline; times are equal up to rounding.

        Raises:
            ValueError: If the file is not in that format.
        """
        from divisible.schedules.trace import load_trace

        return load_trace(path)

    def plot(self, path: str | os.PathLike, title: str | None = None) -> None:
        """Draws the timeline; needs matplotlib.

        Args:
            path: Where to write; the ending gives the format (``.png``, ``.svg`` …).
            title: Above the picture; name and makespan by default.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        from divisible.schedules.plot import plot_timeline

        plot_timeline(self, path, title)


def _parse(text: str) -> Action | Message | str:
    try:
        return parse_operation(text)
    except ValueError:
        return text
