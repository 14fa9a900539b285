"""The programs of a rank whose schedule has two weight versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from divisible.schedules.absences import Absences
from divisible.schedules.actions import Action, Operation, Route
from divisible.schedules.lowering import lower
from divisible.schedules.rank_program import RankProgram
from divisible.schedules.schedule import Schedule
from divisible.schedules.weight_versions import turns, unrolled

# Nothing waits on a disk.
_NONE = Absences(np.zeros(0, np.int64), np.zeros(0, np.int64))


class LatePrograms(NamedTuple):
    """The programs of a rank, with the messages that it sends and receives.

    A microbatch has its number in its own minibatch. A carried backward runs before the
    forward with the same number, so a number stands for one microbatch at a time.

    Attributes:
        first: The program of a minibatch before which nothing is carried.
        later: The program of a minibatch with carried actions of the one before.
        flush: The program of the carried actions alone.

    Example:
        >>> from divisible.schedules import pipedream_2bw
        >>> programs = LatePrograms.of(pipedream_2bw(n_stages=2, n_microbatches=2), 0)
        >>> print(*programs.later.operations)
        0F0 0F0>1 1B1<1 0B1 0F1 0F1>1 1B0<1 0B0
        >>> print(*programs.flush.operations)
        1B1<1 0B1
    """

    first: RankProgram
    later: RankProgram
    flush: RankProgram

    @classmethod
    def of(
        cls, schedule: Schedule, rank: int, routes: Sequence[Route] = ()
    ) -> LatePrograms:
        """Returns the programs of one rank.

        Sends must not block: a result may be received in the next minibatch.

        Args:
            schedule (Schedule): A schedule of one minibatch.
            rank (int): The rank.
            routes: The skip connections between stages.
        """
        two = Schedule.from_arrays(*unrolled(schedule, 2))
        operations = lower(two, rendezvous=False, routes=routes)[rank]
        programs, begin = [], 0
        for numbers in turns(schedule, rank):
            end = _end(operations, begin, len(numbers))
            own = [_renumbered(o, schedule) for o in operations[begin:end]]
            program = RankProgram.from_operations(schedule, own, _NONE, routes)
            programs.append(program)
            begin = end
        return cls(*programs)


def _end(operations: Sequence[Operation], begin: int, n_actions: int) -> int:
    """Returns the position behind some actions, and behind the sends of their results.

    Receives that follow are for the next action.
    """
    position = begin
    while n_actions:
        n_actions -= isinstance(operations[position], Action)
        position += 1
    while position < len(operations) and _is_send(operations[position]):
        position += 1
    return position


def _is_send(operation: Operation) -> bool:
    return not isinstance(operation, Action) and operation.direction == "send"


def _renumbered(operation: Operation, schedule: Schedule) -> Operation:
    """Returns an operation with the number of its microbatch in its own minibatch."""
    if isinstance(operation, Action):
        number = operation.microbatch % schedule.n_microbatches
        return operation._replace(microbatch=number)
    return operation._replace(action=_renumbered(operation.action, schedule))
