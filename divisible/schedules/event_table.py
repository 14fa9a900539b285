"""The events of all ranks as columns of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from divisible.schedules.actions import FORWARD, KINDS, Action, Transfer
from divisible.schedules.events import CATEGORIES, UPDATE, Event
from divisible.schedules.held import in_layers_of_ranks

#: Stands for "none" in a column.
NONE = -1
#: The directions of messages, and of waits for them.
DIRECTIONS = ("send", "receive")
#: The columns and their dtypes.
COLUMNS = {
    "rank": np.int32,
    "category": np.int8,
    "stage": np.int32,
    "kind": np.int8,
    "microbatch": np.int32,
    "count": np.int32,
    "peer": np.int32,
    "direction": np.int8,
    "label": np.int32,
    "start": np.float64,
    "end": np.float64,
}


class EventTable:
    """Events of all ranks on one clock, and how long ranks compute and wait.

    Events are kept as columns, and become objects only when they are read.

    Args:
        columns: An array of shape ``(n_events,)`` for each of `COLUMNS`.
        n_ranks: Number of ranks. Left out, it is read from the columns.
        name: Name of the table in files and pictures.
        labels: Texts; the column ``label`` has positions in them.

    Raises:
        ValueError: If an event ends before it starts, or a rank does not exist.
    """

    def __init__(
        self,
        columns: Mapping[str, ArrayLike],
        n_ranks: int | None = None,
        name: str = "timeline",
        labels: Iterable[str] = (),
    ) -> None:
        arrays = {c: np.asarray(columns[c], dtype) for c, dtype in COLUMNS.items()}
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
            # Events of one start keep their order, because an event may take no time.
            order = np.lexsort((start, rank))
            arrays = {column: array[order] for column, array in arrays.items()}
        for column, array in arrays.items():
            setattr(self, column, array)
        self._labels = tuple(labels)
        self.offsets = np.searchsorted(arrays["rank"], np.arange(n_ranks + 1))
        self.n_ranks = n_ranks
        self.name = name
        self.peak_memory: np.ndarray | None = None
        self.n_minibatches = 1
        self.find_bound: Callable[[], float] | None = None

    def __len__(self) -> int:
        """Returns the number of events."""
        return self.start.size

    def __getitem__(self, index: int) -> Event:
        what: Action | Transfer | str
        label = self._labels[self.label[index]] if self.label[index] != NONE else ""
        if self.kind[index] == NONE:
            what = label or CATEGORIES[self.category[index]]
        else:
            what = Action.of(
                int(self.stage[index]),
                KINDS[self.kind[index]],
                int(self.microbatch[index]),
                int(self.count[index]),
            )
            if self.direction[index] != NONE:
                direction = DIRECTIONS[self.direction[index]]
                what = Transfer(what, int(self.peer[index]), direction, label)
        return Event(
            int(self.rank[index]),
            what,
            float(self.start[index]),
            float(self.end[index]),
            CATEGORIES[self.category[index]],
        )

    def microbatches(self, index: int) -> str:
        """Returns the microbatches of an event as text, such as ``'4'`` or ``'4-7'``.

        Args:
            index: The position of the event.
        """
        first, count = self.microbatch[index], self.count[index]
        return str(first) if count == 1 else f"{first}-{first + count - 1}"

    def __iter__(self) -> Iterator[Event]:
        return (self[index] for index in range(len(self)))

    def rank_events(self, rank: int) -> list[Event]:
        """Returns the events of one rank.

        Args:
            rank: The rank, from 0.

        Returns:
            The events of the rank, by start.
        """
        return [self[k] for k in range(self.offsets[rank], self.offsets[rank + 1])]

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return float(self.end.max() - self.start.min()) if len(self) else 0.0

    @property
    def minibatch_seconds(self) -> float:
        """Seconds that the last minibatch adds; of each one, if they do not change."""
        if self.n_minibatches == 1:
            return self.makespan
        compute = self.category < len(KINDS)
        size = (self.microbatch + self.count).max() // self.n_minibatches
        before = compute & (self.microbatch < size * (self.n_minibatches - 1))
        return float(self.end[compute].max() - self.end[before].max())

    @cached_property
    def bound(self) -> float | None:
        """Seconds that no order of the same actions goes below, if predicted.

        `divisible.schedules.lower_bound` has the proof. ``None`` in a timeline that was
        measured.
        """
        if self.find_bound is None:
            return None
        # Sums of the same numbers in another order differ by rounding.
        return min(self.find_bound(), self.makespan)

    @property
    def gap(self) -> float | None:
        """The part by which the makespan is above ``bound``: 0.02 for 2 %."""
        if self.bound is None:
            return None
        return self.makespan / self.bound - 1 if self.bound else 0.0

    @property
    def busy(self) -> np.ndarray:
        """Seconds each rank computes."""
        return self._seconds(self.category < len(KINDS))

    @property
    def updating(self) -> np.ndarray:
        """Seconds in which each rank's optimizers update parameters."""
        return self._seconds(self.category == UPDATE)

    def _seconds(self, chosen: np.ndarray) -> np.ndarray:
        seconds = (self.end - self.start)[chosen]
        return np.bincount(self.rank[chosen], seconds, self.n_ranks)

    @property
    def bubble_time(self) -> np.ndarray:
        """Seconds each rank neither computes nor updates, from first to last event."""
        return self.makespan - self.busy - self.updating

    @property
    def bubble(self) -> np.ndarray:
        """The share of the makespan in ``bubble_time``, from 0 to 1."""
        return self.bubble_time / self.makespan if self.makespan else self.busy

    @property
    def peak_in_flight(self) -> np.ndarray:
        """For each rank the largest number of microbatches between F and B or I.

        The unit is that of :class:`divisible.schedules.held.Report`: each of a rank's
        ``n`` stages holds an ``n``-th of a microbatch.
        """
        return self._peak([1, -1, -1, 0, 0])

    @property
    def peak_held(self) -> np.ndarray:
        """For each rank the largest number of microbatches in flight or with pending W.

        The unit is that of ``peak_in_flight``.
        """
        return self._peak([1, -1, 0, -1, 0])

    def _peak(self, change: list[int]) -> np.ndarray:
        others = [0] * (len(CATEGORIES) - len(KINDS))
        changes = np.array([*change, *others])[self.category] * self.count
        computations = self.category[self.category < len(KINDS)]
        if computations.max(initial=FORWARD) == FORWARD:
            changes[:] = 0  # evaluation holds nothing
        compute = np.where(self.category < len(KINDS), self.stage, NONE)
        counts, n_stages = [], []
        for begin, end in zip(self.offsets[:-1], self.offsets[1:]):
            counts.append(np.cumsum(changes[begin:end]).max(initial=0))
            stages = np.unique(compute[begin:end])
            n_stages.append((stages != NONE).sum())
        return in_layers_of_ranks(counts, n_stages)
