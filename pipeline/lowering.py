"""Derives the messages of a schedule from its compute order.

Nobody writes a send or a receive by hand: which results cross ranks follows from the
stage-to-rank map, and when they do from the order of the computations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.actions import FORWARD, KINDS, Action, Message, Operation, ScheduleError
from pipeline.dependencies import (
    NONE,
    receivers,
    suppliers,
    unit_steps,
)

if TYPE_CHECKING:
    from pipeline.schedule import Schedule

COMPUTE, SEND, RECEIVE = range(3)


class Program(NamedTuple):
    """One rank's operations as arrays of equal length.

    Attributes:
        what: `COMPUTE`, `SEND` or `RECEIVE`.
        action: The number of the action that is run or whose result travels.
        peer: The rank at the other end of a message, `NONE` for computations.
    """

    what: np.ndarray
    action: np.ndarray
    peer: np.ndarray


def lower(
    schedule: Schedule, rendezvous: bool = True
) -> tuple[tuple[Operation, ...], ...]:
    """Adds sends and receives to the computations of every rank.

    A send stands right after the computation whose result it carries, and the
    messages from one rank to another have the same order on both ranks. Where the
    receive stands depends on what a send costs.

    With ``rendezvous=True`` both ends may block until the other one arrives
    (``MPI_Ssend`` and ``MPI_Recv``; ChainerMN). All ranks are run step by step, and
    each message is written into both programs at the same moment, at the end of the
    step that computed it. So one order of all messages exists that every program
    agrees with, and no cyclic wait can arise. Of the messages of one step the one
    furthest along the pipeline comes first, so that a rank passes its own result on
    before it takes the next::

        rank 0  0F0 0F0>1 0F1       0F1>1 0F2 ...
        rank 1      0F0<0 1F0 1F0>2 0F1<0 1F1 1F1>2 ...
        rank 2                1F0<1       2F0 1F1<1 ...

    With ``rendezvous=False`` sends never block (receives are posted ahead, sends are
    buffered or non-blocking). A receive then stands as late as it may: right before
    the computation that needs it, or before a message that the same rank sent later
    and that is needed earlier. There a program waits for nothing that it does not
    need yet.

    Args:
        schedule: A schedule that `pipeline.validation.validate` accepts.
        rendezvous: Whether sends may block until they are received.

    Returns:
        For each rank its computations (`Action`) and messages (`Message`) in order.

    Raises:
        ScheduleError: If the ranks wait for each other in a circle.

    Example:
        >>> from pipeline.schedules import one_f_one_b
        >>> for program in lower(one_f_one_b(n_stages=2, n_microbatches=2)):
        ...     print(*program)
        0F0 0F0>1 0F1 0F1>1 1B0<1 0B0 1B1<1 0B1
        0F0<0 1F0 0F1<0 1B0 1B0>0 1F1 1B1 1B1>0
    """
    kinds = [KINDS[code] for code in schedule.kind.tolist()]
    names = [
        Action(stage, kind, microbatch)
        for stage, kind, microbatch in zip(
            schedule.stage.tolist(), kinds, schedule.microbatch.tolist()
        )
    ]
    direction = {SEND: "send", RECEIVE: "receive"}
    return tuple(
        tuple(
            names[action]
            if what == COMPUTE
            else Message(names[action], peer, direction[what])
            for what, action, peer in zip(*(column.tolist() for column in program))
        )
        for program in lower_arrays(schedule, rendezvous)
    )


def lower_arrays(schedule: Schedule, rendezvous: bool = True) -> list[Program]:
    """Does the work of `lower` on compact arrays.

    Args:
        schedule: See `lower`.
        rendezvous: See `lower`.

    Returns:
        For each rank its program.

    Raises:
        ScheduleError: If the ranks wait for each other in a circle.
    """
    receiver = receivers(schedule)
    if rendezvous:
        return _lower_rendezvous(schedule, receiver)
    return _lower_late(schedule, receiver)


def rendezvous_order(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Gives all computations and messages their places in one common order.

    Args:
        schedule: A schedule.

    Returns:
        For each action an integer that places the computation, and one that places
        the message with its result. No two of one rank's are equal.

    Raises:
        ScheduleError: If the ranks wait for each other in a circle.
    """
    step, stuck = unit_steps(schedule)
    if (stuck != NONE).any():
        raise ScheduleError(
            f"schedule {schedule.name!r} cannot be lowered: its ranks wait for each "
            "other in a circle; schedule.validate() shows where"
        )
    # In a step computations come first, then messages: the one furthest along the way
    # forward and back through all stages first.
    n_stages = schedule.n_stages
    forward = schedule.kind == FORWARD
    way = np.where(forward, schedule.stage, 2 * n_stages - 1 - schedule.stage)
    compute = step * (2 * n_stages + 1)
    message = compute + (2 * n_stages - way)
    return compute, message


def _lower_rendezvous(schedule: Schedule, receiver: np.ndarray) -> list[Program]:
    moment, message_moment = rendezvous_order(schedule)
    sender, inbox = _inboxes(schedule, receiver)

    programs = []
    for rank in range(schedule.n_ranks):
        own = np.arange(schedule.offsets[rank], schedule.offsets[rank + 1])
        out = own[receiver[own] != NONE]
        into = inbox[rank]
        order = np.argsort(
            np.concatenate([moment[own], message_moment[out], message_moment[into]]),
            kind="stable",
        )
        programs.append(_program(own, out, into, receiver, sender, order))
    return programs


def _lower_late(schedule: Schedule, receiver: np.ndarray) -> list[Program]:
    needed = suppliers(schedule)
    sender, inbox = _inboxes(schedule, receiver)
    users = np.flatnonzero(needed != NONE)
    users = users[sender[users] != sender[needed[users]]]
    consumer = np.full(schedule.stage.size, NONE, np.int64)
    consumer[needed[users]] = users

    programs = []
    for rank in range(schedule.n_ranks):
        own = np.arange(schedule.offsets[rank], schedule.offsets[rank + 1])
        out = own[receiver[own] != NONE]
        into = inbox[rank]
        place = consumer[into]
        for peer in np.unique(sender[into]):
            # Action numbers grow in the order in which the peer computes and sends.
            chosen = np.flatnonzero(sender[into] == peer)
            place[chosen] = np.minimum.accumulate(place[chosen][::-1])[::-1]
        phase = np.repeat([1, 2, 0], [own.size, out.size, into.size])
        order = np.lexsort((phase, np.concatenate([own, out, place])))
        programs.append(_program(own, out, into, receiver, sender, order))
    return programs


def _inboxes(
    schedule: Schedule, receiver: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns each action's rank, and for each rank the actions it receives."""
    sender = np.repeat(np.arange(schedule.n_ranks), np.diff(schedule.offsets))
    sent = np.flatnonzero(receiver != NONE)
    sent = sent[np.argsort(receiver[sent], kind="stable")]
    first = np.searchsorted(receiver[sent], np.arange(1, schedule.n_ranks))
    return sender, np.split(sent, first)


def _program(own, out, into, receiver, sender, order) -> Program:
    """Puts a rank's computations, sends and receives into one order."""
    what = np.repeat([COMPUTE, SEND, RECEIVE], [own.size, out.size, into.size])
    peer = np.concatenate([np.full(own.size, NONE), receiver[out], sender[into]])
    return Program(what[order], np.concatenate([own, out, into])[order], peer[order])
