"""Why a rank waits: the message or the action, and what made that one late.

The answer goes back from an action to the one that it waited for, as far as the first
action of the step::

    rank 0  0F0 0F1
    rank 1    . 1F0 1B0         0B0 waited for 1B0, which ran after 1F0,
    rank 0            . 0B0     which waited for 0F0
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from divisible.explore.simulation import Simulation
from divisible.planning.units import count, format_seconds
from divisible.schedules.dependencies import NONE, other_rank_suppliers
from divisible.schedules.simulator import results_sent

# The longest answer, in waits from one rank to another.
_MOST_HOPS = 8
# Sums of the same seconds in another order differ by this part of the makespan.
_ROUNDING = 1e-9


class Reason(NamedTuple):
    """Why a rank waits, or why it does not.

    Attributes:
        text: The answer in sentences.
        chain: The positions of the events that it names, the latest one first.
    """

    text: str
    chain: list[int]


def why(simulation: Simulation, rank: int, seconds: float) -> Reason:
    """Answers why a rank waits at a moment, or why it began its action when it did.

    Args:
        simulation: The simulation.
        rank: The rank.
        seconds: The moment.

    Raises:
        ValueError: If there is no such rank.

    Example:
        >>> from divisible.explore.question import Question
        >>> from divisible.explore.simulation import simulated
        >>> from divisible.explore.sources import Sources
        >>> question = Question("gpipe", ranks=2, microbatches=1)
        >>> reason = why(simulated(question, Sources()), rank=1, seconds=0.5)
        >>> for sentence in reason.text.split(". "):
        ...     print(sentence)
        Rank 1 waits for 1 s, from 0 to 1 s, for the message 0F0>1
        Rank 0 sends it when it has run 0F0, at 1 s
        0F0 is the first action of rank 0.
    """
    run, timeline = simulation.run, simulation.timeline
    if not 0 <= rank < run.n_ranks:
        raise ValueError(f"there is no rank {rank}: there are {run.n_ranks}")
    here = np.arange(run.offsets[rank], run.offsets[rank + 1])
    later = here[timeline.end[simulation.events[here]] > seconds]
    if not later.size:
        last = int(timeline.end.argmax())
        return Reason(
            f"Rank {rank} has no more actions. The step ends with {timeline[last].what}"
            f" of rank {timeline.rank[last]}, at {format_seconds(timeline.end[last])}.",
            [last],
        )
    return _Answer(simulation).about(int(later[0]))


def reasons(simulation: Simulation) -> list[Reason]:
    """Returns the answer for each event of the timeline; an empty one for an update.

    Args:
        simulation: The simulation.
    """
    answers = [Reason("", [])] * len(simulation.timeline)
    answer = _Answer(simulation)
    for action, event in enumerate(simulation.events.tolist()):
        answers[event] = answer.about(action)
    return answers


class _Answer:
    """The sentences about one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        timeline, self._run = simulation.timeline, simulation.run
        self._events = simulation.events
        self._start = timeline.start[self._events]
        self._end = timeline.end[self._events]
        self._needed = other_rank_suppliers(self._run)
        _, transfer, latency = results_sent(self._run, simulation.costs)
        self._travel = transfer + latency
        # Messages that occupy both ranks are events before the action.
        event = self._events
        previous = np.where(event > 0, timeline.end[event - 1], 0.0)
        is_first = event == timeline.offsets[self._run.action_ranks]
        self._free = np.where(is_first, 0.0, previous)
        self._slack = _ROUNDING * timeline.makespan

    def about(self, action: int) -> Reason:
        """Goes back from an action to what it waited for."""
        sentences = [self._waiting(action)]
        chain: list[int] = []
        at: int | None = action
        for hop in range(_MOST_HOPS):
            busy = self._busy(at)
            chain += busy
            sentence = self._from(busy)
            # The first sentence already names what the action itself waits for.
            if hop or len(busy) > 1:
                sentences.append(sentence)
            at = self._supplier(busy[-1])
            if at is None:
                break
        else:
            busy = self._busy(at)
            chain += busy
            is_first = self._supplier(busy[-1]) is None
            words = self._from(busy) if is_first else "Earlier waits are left out."
            sentences.append(words)
        return Reason(" ".join(sentences), self._events[chain].tolist())

    def _busy(self, action: int) -> list[int]:
        """Returns an action, and those before it that its rank ran without a wait."""
        first = int(self._run.offsets[self._rank(action)])
        busy = [action]
        while busy[-1] > first and self._supplier(busy[-1]) is None:
            busy.append(busy[-1] - 1)
        return busy

    def _supplier(self, action: int) -> int | None:
        """Returns the action on another rank that one waited for, if it did."""
        need = int(self._needed[action])
        return need if need != NONE and self._waits(action) else None

    def _from(self, busy: list[int]) -> str:
        """Returns the sentence about actions that a rank ran without a wait."""
        name, first = (self._run.action(each) for each in (busy[0], busy[-1]))
        need = self._supplier(busy[-1])
        rank = self._rank(busy[0])
        if need is None and len(busy) == 1:
            return f"{name} is the first action of rank {rank}."
        words = f"{name} follows {first} on rank {rank}"
        if len(busy) > 2:
            between = count(len(busy) - 2, "action")
            words = f"{name} follows {first} and {between} on rank {rank}"
        if len(busy) == 1:
            return f"{name} waits for {self._run.action(need)}."
        if need is None:
            return f"{words}, from its first action on."
        return f"{words}, and {first} waits for {self._run.action(need)}."

    def _waits(self, action: int) -> bool:
        return bool(self._start[action] > self._free[action] + self._slack)

    def _waiting(self, action: int) -> str:
        """Returns the sentences about the wait before an action."""
        rank, name = self._rank(action), self._run.action(action)
        start, free = self._start[action], self._free[action]
        if not self._waits(action):
            return (
                f"Rank {rank} does not wait for {name}: it begins at"
                f" {_at(start)}, as soon as the rank is free."
            )
        need = self._needed[action]
        if need == NONE:
            return f"Rank {rank} begins {name} at {_at(start)}."
        supplier, sent = self._rank(need), self._end[need]
        words = (
            f"Rank {rank} waits for {format_seconds(start - free)}, from {_at(free)} to"
            f" {_at(start)}, for the message {self._run.action(need)}>{rank}."
            f" Rank {supplier} sends it when it has run {self._run.action(need)}, at"
            f" {_at(sent)}."
        )
        under_way = start - sent
        if under_way > self._slack:
            words += f" The message takes {format_seconds(self._travel[need])}."
            queued = under_way - self._travel[need]
            if queued > self._slack:
                words += (
                    f" Before that it waits for {format_seconds(queued)}, because the"
                    f" link or a rank is busy."
                )
        return words

    def _rank(self, action: int) -> int:
        return int(self._run.action_ranks[action])


def _at(seconds: float) -> str:
    return format_seconds(float(seconds))
