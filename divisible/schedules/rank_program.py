"""A schedule as one rank sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from divisible.schedules.absences import Absences, absences_on
from divisible.schedules.actions import Action, Operation, Route
from divisible.schedules.lowering import lower
from divisible.schedules.schedule import Schedule
from divisible.schedules.timeline import Timeline


class Channel(NamedTuple):
    """The way of results from a stage to its neighbour, or along a skip."""

    stage: int
    is_forward: bool
    skip: str = ""


class Slot(NamedTuple):
    """Where a result waits to be used: what ``stage`` left for another one.

    The first stage finds its input where a stage -1 would have left it.
    """

    stage: int
    is_forward: bool
    microbatch: int
    skip: str = ""

    @classmethod
    def of(cls, action: Action, skip: str = "") -> Slot:
        """Returns where an action leaves its result, or what a skip takes of it."""
        return cls(action.stage, action.kind == "F", action.microbatch, skip)

    @property
    def channel(self) -> Channel:
        """The channel that carries the result, if its user is on another rank."""
        return Channel(self.stage, self.is_forward, self.skip)


class Task(NamedTuple):
    """An operation of one rank, with where it finds and leaves tensors.

    Attributes:
        operation: What to do.
        slot: Where the result of an action goes; what a send takes away, and where a
            receive puts something.
        takes: By the name of a skip connection where an action finds what that brings;
            under no name what its neighbour left.
        channel: The channel that carries the result, if its user is on another rank.
        is_recomputed: Whether it is a forward that will be run again.
        next_action: The first action from there on, for which a receive waits.
        name: The operation in the notation of schedules.
    """

    operation: Operation
    slot: Slot
    takes: Mapping[str, Slot]
    channel: Channel
    is_recomputed: bool
    next_action: str
    name: str


class RankProgram(NamedTuple):
    """A schedule from one rank's point of view.

    Attributes:
        name: The schedule's name.
        n_stages: Number of stages on all ranks.
        n_microbatches: Number of microbatches.
        tasks: What this rank does, in order.
        receives: For each channel the microbatches that come over it, in order.
        absences: Which microbatches may be elsewhere than in memory, as positions among
            this rank's actions.
    """

    name: str
    n_stages: int
    n_microbatches: int
    tasks: Sequence[Task]
    receives: Mapping[Channel, Sequence[int]]
    absences: Absences

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        rank: int,
        rendezvous: bool,
        routes: Sequence[Route] = (),
    ) -> RankProgram:
        """Adds the messages to a schedule, and takes one rank's part.

        Args:
            schedule (Schedule): The computations.
            rank (int): The rank.
            rendezvous (bool): Whether sends may block until they are received.
            routes: The skip connections between stages.
        """
        operations = lower(schedule, rendezvous, routes)[rank]
        neighbours = [Route("", i, i + 1) for i in range(-1, schedule.n_stages)]
        again = {
            (operation.stage, operation.microbatch)
            for operation in operations
            if isinstance(operation, Action) and operation.kind == "R"
        }
        receives: dict[Channel, list[int]] = {}
        tasks: list[Task] = []
        next_action = ""
        for operation in reversed(operations):
            if isinstance(operation, Action):
                next_action = str(operation)
                takes = _takes(operation, [*neighbours, *routes])
                place = operation.stage, operation.microbatch
                is_recomputed = operation.kind == "F" and place in again
                slot = Slot.of(operation)
            else:
                takes, is_recomputed = {}, False
                slot = Slot.of(operation.action, operation.skip)
                if operation.direction == "receive":
                    receives.setdefault(slot.channel, []).insert(0, slot.microbatch)
            tasks.append(
                Task(
                    operation,
                    slot,
                    takes,
                    slot.channel,
                    is_recomputed,
                    next_action,
                    str(operation),
                )
            )
        return cls(
            schedule.name,
            schedule.n_stages,
            schedule.n_microbatches,
            tasks[::-1],
            receives,
            absences_on(schedule, rank),
        )

    @property
    def operations(self) -> list[Operation]:
        """The actions and transfers of this rank, in order."""
        return [task.operation for task in self.tasks]


def _takes(action: Action, routes: Sequence[Route]) -> dict[str, Slot]:
    """Returns where an action finds what it needs of other stages."""
    takes = {}
    if action.kind in "FBI":
        is_forward = action.kind == "F"
        for name, source, target in routes:
            here, there = (target, source) if is_forward else (source, target)
            if here == action.stage:
                takes[name] = Slot(there, is_forward, action.microbatch, name)
    return takes


class Span(NamedTuple):
    """Something that a rank does besides its program.

    Attributes:
        what: In words.
        start: In seconds, of the clock of whoever has it.
        end: Likewise.
    """

    what: str
    start: float
    end: float

    def since(self, zero: float) -> Span:
        """Returns it with seconds from a moment on."""
        return Span(self.what, self.start - zero, self.end - zero)


class Record(NamedTuple):
    """One run of a program on one rank: when it did what.

    Attributes:
        program: What was run.
        times: The start and end of each operation in turn, in seconds of this host's
            clock.
        after: What the rank did after it and before the next run, by the same clock.
    """

    program: RankProgram
    times: list[float]
    after: Sequence[Span] = ()


class RankTimes(NamedTuple):
    """When a rank did what, by a clock that all ranks share.

    Attributes:
        operations: Of its program.
        times: The start and end of each in turn, in seconds.
        besides: What else it did meanwhile or afterwards.
    """

    operations: Sequence[Operation]
    times: np.ndarray
    besides: Sequence[Span]


def measured_timeline(name: str, ranks: Sequence[RankTimes]) -> Timeline:
    """Puts together what all ranks did.

    Args:
        name (str): Of the timeline.
        ranks: The times of each rank.

    Returns:
        Timeline: From the start of the first operation on. A receive is a wait.
    """
    first = min(each.times[0] for each in ranks if len(each.times))
    events = []
    for rank, (operations, times, besides) in enumerate(ranks):
        for operation, start, end in zip(operations, times[::2], times[1::2]):
            category = _category(operation)
            events.append((rank, operation, start - first, end - first, category))
        events += [(rank, *span.since(first), "other") for span in besides]
    return Timeline(events, n_ranks=len(ranks), name=name)


def _category(operation: Operation) -> str:
    if isinstance(operation, Action):
        return operation.kind
    return "send" if operation.direction == "send" else "wait"
