"""A schedule as one rank sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from divisible.schedules.actions import Action, Operation, Route, Transfer
from divisible.schedules.lowering import lower
from divisible.schedules.schedule import Schedule
from divisible.schedules.timeline import Timeline


class Channel(NamedTuple):
    """What results travel over: from a stage to its neighbour, or along a skip."""

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

    @classmethod
    def needed_by(cls, action: Action) -> Slot:
        """Returns where an action finds what its neighbour left."""
        is_forward = action.kind == "F"
        neighbour = action.stage - 1 if is_forward else action.stage + 1
        return cls(neighbour, is_forward, action.microbatch)

    @property
    def channel(self) -> Channel:
        """What the result travels over, if its user is on another rank."""
        return Channel(self.stage, self.is_forward, self.skip)


class RankProgram(NamedTuple):
    """A schedule from one rank's point of view.

    Attributes:
        name: The schedule's name.
        n_stages: Number of stages on all ranks.
        n_microbatches: Number of microbatches.
        operations: What this rank does, in order.
        next_actions: For each operation the first action from there on, for which a
            receive waits.
        receives: For each channel the microbatches that come over it, in order.
        recomputed: Stages and microbatches whose forward is run again.
    """

    name: str
    n_stages: int
    n_microbatches: int
    operations: Sequence[Operation]
    next_actions: Sequence[Action | None]
    receives: Mapping[Channel, Sequence[int]]
    recomputed: Set[tuple[int, int]]

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
        receives: dict[Channel, list[int]] = {}
        for operation in operations:
            if isinstance(operation, Transfer) and operation.direction == "receive":
                place = Slot.of(operation.action, operation.skip)
                receives.setdefault(place.channel, []).append(place.microbatch)
        next_actions: list[Action | None] = []
        action = None
        for operation in reversed(operations):
            action = operation if isinstance(operation, Action) else action
            next_actions.append(action)
        return cls(
            schedule.name,
            schedule.n_stages,
            schedule.n_microbatches,
            operations,
            next_actions[::-1],
            receives,
            {
                (operation.stage, operation.microbatch)
                for operation in operations
                if isinstance(operation, Action) and operation.kind == "R"
            },
        )


class Record(NamedTuple):
    """What one rank did in one run of a program, and when.

    Attributes:
        program: What was run.
        times: The start and end of each operation in turn, in seconds of this host's
            clock.
    """

    program: RankProgram
    times: list[float]


def measured_timeline(
    name: str, ranks: Sequence[tuple[Sequence[Operation], np.ndarray]]
) -> Timeline:
    """Puts together what all ranks did.

    Args:
        name (str): Of the timeline.
        ranks: For each rank its operations, and the start and end of each in turn, in
            seconds of a clock that all ranks share.

    Returns:
        Timeline: From the start of the first operation on. A receive is a wait.
    """
    first = min(times[0] for _, times in ranks if len(times))
    return Timeline(
        (
            (rank, operation, start - first, end - first, _category(operation))
            for rank, (operations, times) in enumerate(ranks)
            for operation, start, end in zip(operations, times[::2], times[1::2])
        ),
        n_ranks=len(ranks),
        name=name,
    )


def _category(operation: Operation) -> str:
    if isinstance(operation, Action):
        return operation.kind
    return "send" if operation.direction == "send" else "wait"
