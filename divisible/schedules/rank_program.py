"""A schedule as one rank runs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from divisible.schedules.absences import Absences, absences_on
from divisible.schedules.actions import RECOMPUTE, Action, Operation, Route
from divisible.schedules.lowering import lower
from divisible.schedules.schedule import Schedule
from divisible.schedules.timeline import Timeline

#: Number of receives that a channel has posted ahead of the one it waits for.
RECEIVES_AHEAD = 2


class Channel(NamedTuple):
    """The way of results from a stage to its neighbour, or over a skip connection."""

    stage: int
    is_forward: bool
    skip: str = ""


class Slot(NamedTuple):
    """The place where a result of ``stage`` waits until another stage uses it.

    The input of the first stage has the slot of a stage -1.
    """

    stage: int
    is_forward: bool
    microbatch: int
    skip: str = ""

    @classmethod
    def of(cls, action: Action, skip: str = "") -> Slot:
        """Returns the slot of an action's result, or of its tensor for a skip."""
        return cls(action.stage, action.kind == "F", action.microbatch, skip)

    @property
    def channel(self) -> Channel:
        """The channel that carries the result, if its user is on another rank."""
        return Channel(self.stage, self.is_forward, self.skip)


class Member(NamedTuple):
    """One microbatch of a group, and the slots of its tensors.

    Attributes:
        slot: The slot of the microbatch's result; see `Task`.
        takes: The slots that the group reads for this microbatch; see `Task`.
    """

    slot: Slot
    takes: Mapping[str, Slot]


class Task(NamedTuple):
    """An operation of one rank, and the slots of its tensors.

    Attributes:
        operation: The action or message.
        slot: The slot into which an action or a receive puts its result, or from which
            a send removes it. That of the first microbatch of a group.
        takes: The slots that an action reads, by the names of skip connections. The
            slot of the neighbour has the empty name. Those of the first microbatch of a
            group.
        channel: The channel that carries the result to another rank, if its user is on
            one.
        is_recomputed: Whether the action is a forward that will run again.
        next_action: The next action from here on, for which a receive waits.
        name: The operation in the notation of schedules.
        group: The microbatches of an action on several; empty for one microbatch.
    """

    operation: Operation
    slot: Slot
    takes: Mapping[str, Slot]
    channel: Channel
    is_recomputed: bool
    next_action: str
    name: str
    group: Sequence[Member] = ()


class RankProgram(NamedTuple):
    """A schedule from one rank's point of view.

    Attributes:
        name: The schedule's name.
        n_stages: Number of stages on all ranks.
        n_microbatches: Number of microbatches.
        tasks: The operations of this rank, in order.
        receives: For each channel the microbatches that come over it, in order.
        absences: When microbatches may be outside memory, as positions among this
            rank's actions.
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
        """Adds the messages to a schedule, and returns one rank's part.

        Args:
            schedule (Schedule): The computations.
            rank (int): The rank.
            rendezvous (bool): Whether sends may block until they are received.
            routes: The skip connections between stages.
        """
        operations = lower(schedule, rendezvous, routes)[rank]
        absences = absences_on(schedule, rank)
        return cls.from_operations(schedule, operations, absences, routes)

    @classmethod
    def from_operations(
        cls,
        schedule: Schedule,
        operations: Sequence[Operation],
        absences: Absences,
        routes: Sequence[Route] = (),
    ) -> RankProgram:
        """Returns the program of given operations of one rank.

        Args:
            schedule (Schedule): The schedule of a minibatch.
            operations: Actions and messages of the rank, in order.
            absences: When microbatches may be outside memory.
            routes: The skip connections between stages.
        """
        neighbours = [Route("", i, i + 1) for i in range(-1, schedule.n_stages)]
        found = schedule.kind == RECOMPUTE
        columns = schedule.stage[found], schedule.microbatch[found]
        again = {*zip(*(column.tolist() for column in columns))}
        receives: dict[Channel, list[int]] = {}
        tasks: list[Task] = []
        next_action = ""
        for operation in reversed(operations):
            group = ()
            if isinstance(operation, Action):
                next_action = str(operation)
                group = _members(operation, [*neighbours, *routes])
                slot, takes = group[0]
                place = operation.stage, operation.microbatches[0]
                is_recomputed = operation.kind == "F" and place in again
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
                    group if len(group) > 1 else (),
                )
            )
        return cls(
            schedule.name,
            schedule.n_stages,
            schedule.n_microbatches,
            tasks[::-1],
            receives,
            absences,
        )

    def n_until_losses(self) -> int:
        """Returns how many tasks this rank has until all losses are computed.

        It is 0 on ranks without the last stage.
        """
        last = self.n_stages - 1, "F"
        found = 0
        for n, (operation, *_) in enumerate(self.tasks, 1):
            if isinstance(operation, Action) and operation[:2] == last:
                found = n
        return found

    @property
    def operations(self) -> list[Operation]:
        """The actions and transfers of this rank, in order."""
        return [task.operation for task in self.tasks]


def _takes(action: Action, routes: Sequence[Route]) -> dict[str, Slot]:
    """Returns the slots from which an action reads results of other stages."""
    takes = {}
    if action.kind in "FBI":
        is_forward = action.kind == "F"
        for name, source, target in routes:
            here, there = (target, source) if is_forward else (source, target)
            if here == action.stage:
                takes[name] = Slot(there, is_forward, action.microbatch, name)
    return takes


def _members(action: Action, routes: Sequence[Route]) -> tuple[Member, ...]:
    """Returns the slots of each microbatch of an action."""
    each = [action._replace(microbatch=i) for i in action.microbatches]
    return tuple(Member(Slot.of(one), _takes(one, routes)) for one in each)


class Span(NamedTuple):
    """Something that a rank does besides its program.

    Attributes:
        what: Description in words.
        start: Start in seconds, by the clock of the code that records it.
        end: End in seconds, by the same clock.
        category: Category of the event on the timeline.
    """

    what: str
    start: float
    end: float
    category: str = "other"

    def since(self, zero: float) -> Span:
        """Returns the span with seconds since a given moment."""
        return self._replace(start=self.start - zero, end=self.end - zero)

    def behind(self, others: Iterable[Span]) -> Span:
        """Returns the part of the span after those of the others that end in it.

        An update of replicas waits for the exchange of gradients, which has spans of
        its own.

        Example:
            >>> update = Span("update", 3.0, 6.0)
            >>> update.behind([Span("exchange", 2.0, 5.0), Span("exchange", 5.5, 7.0)])
            Span(what='update', start=5.0, end=6.0, category='other')
        """
        ends = [each.end for each in others if self.start < each.end <= self.end]
        return self._replace(start=max(ends, default=self.start))


class Record(NamedTuple):
    """The times of one run of a program on one rank.

    Attributes:
        program: The program that was run.
        times: The start and end of each operation in turn, in seconds of this host's
            clock.
        after: Spans between this run and the next one, by the same clock.
    """

    program: RankProgram
    times: list[float]
    after: Sequence[Span] = ()

    @property
    def durations(self) -> np.ndarray:
        """Seconds of each operation, in the order of the program."""
        times = np.array(self.times)
        return times[1::2] - times[::2]

    @property
    def span(self) -> float:
        """Seconds from the start of the first operation to the end of the last one."""
        return self.times[-1] - self.times[0] if self.times else 0.0

    def followed_by(self, span: Span) -> Record:
        """Returns the record with one more span after the run."""
        return self._replace(after=(*self.after, span))


class RankTimes(NamedTuple):
    """The times of one rank's operations, by a clock that all ranks share.

    Attributes:
        operations: The operations of the rank's program.
        times: The start and end of each in turn, in seconds.
        besides: Spans besides the program, during the run or after it.
    """

    operations: Sequence[Operation]
    times: np.ndarray
    besides: Sequence[Span]


def measured_timeline(name: str, ranks: Sequence[RankTimes]) -> Timeline:
    """Builds a timeline from the times of all ranks.

    Args:
        name (str): Name of the timeline.
        ranks: The times of each rank.

    Returns:
        Timeline: Its zero is the start of the first operation. A receive is a wait.
    """
    first = min(each.times[0] for each in ranks if len(each.times))
    events = []
    for rank, (operations, times, besides) in enumerate(ranks):
        for operation, start, end in zip(operations, times[::2], times[1::2]):
            category = _category(operation)
            events.append((rank, operation, start - first, end - first, category))
        events += [(rank, *span.since(first)) for span in besides]
    return Timeline(events, n_ranks=len(ranks), name=name)


def _category(operation: Operation) -> str:
    if isinstance(operation, Action):
        return operation.kind
    return "send" if operation.direction == "send" else "wait"
