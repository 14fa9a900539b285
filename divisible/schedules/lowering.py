"""Derives the messages of a schedule from its compute order.

Sends and receives are never written by hand. The stage-to-rank map decides which
results cross ranks, and the order of the computations decides when they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from divisible.schedules.actions import (
    FORWARD,
    Operation,
    Route,
    ScheduleError,
    Transfer,
)
from divisible.schedules.dependencies import (
    NONE,
    locate,
    member_suppliers,
    unit_steps,
)
from divisible.schedules.table import Table


class _Messages(NamedTuple):
    """All messages as arrays of equal length, in the order in which they are sent.

    Messages are sorted by the number of the action that computes them, then by
    microbatch. The one to the neighbouring stage comes before those over skip
    connections.

    Attributes:
        action: The number of the action whose result travels.
        microbatch: The microbatch of the result; a group sends one message for each.
        user: The number of the action that needs the result.
        source: The rank that sends the result.
        target: The rank that receives the result.
        route: The position of the skip connection, or `NONE`.
    """

    action: np.ndarray
    microbatch: np.ndarray
    user: np.ndarray
    source: np.ndarray
    target: np.ndarray
    route: np.ndarray


def lower(
    schedule: Table, rendezvous: bool = True, routes: Sequence[Route] = ()
) -> tuple[tuple[Operation, ...], ...]:
    """Adds sends and receives to the computations of every rank.

    A send stands right after the computation whose result it carries, and the
    messages from one rank to another have the same order on both ranks. Where the
    receive stands depends on what a send costs.

    With ``rendezvous=True`` both ends may block until the other one arrives
    (``MPI_Ssend`` and ``MPI_Recv``; ChainerMN). All ranks are run step by step. Each
    message is written into both programs at the same moment, at the end of the step
    that computed it. So one order of all messages exists that every program agrees
    with, and no cyclic wait can arise. In one step, the message that is furthest along
    the pipeline comes first, so that a rank passes its own result on before it
    receives the next::

        rank 0  0F0 0F0>1 0F1       0F1>1 0F2 ...
        rank 1      0F0<0 1F0 1F0>2 0F1<0 1F1 1F1>2 ...
        rank 2                1F0<1       2F0 1F1<1 ...

    With ``rendezvous=False`` sends never block (receives are posted ahead, sends are
    buffered or non-blocking). A receive then stands as late as it may. Mostly it is
    right before the computation that needs it. It is earlier if the same rank has sent
    another message later, which is needed first. So a program never waits for a message
    that it does not need yet.

    Args:
        schedule: A schedule that `divisible.schedules.validation.validate` accepts.
        rendezvous: Whether sends may block until they are received.
        routes: The skip connections between stages. A tensor is sent straight to the
            rank that needs it, after the output for the next stage. Its gradient comes
            back the same way.

    Returns:
        For each rank its computations (`Action`) and messages (`Transfer`) in order.

    Raises:
        ScheduleError: If the ranks wait for each other in a circle.

    Example:
        >>> from divisible.schedules import one_f_one_b
        >>> for program in lower(one_f_one_b(n_stages=2, n_microbatches=2)):
        ...     print(*program)
        0F0 0F0>1 0F1 0F1>1 1B0<1 0B0 1B1<1 0B1
        0F0<0 1F0 0F1<0 1B0 1B0>0 1F1 1B1 1B1>0
        >>> for program in lower(one_f_one_b(3, 1), routes=[Route("a", 0, 2)]):
        ...     print(*program)
        0F0 0F0>1 0F0.a>2 2B0.a<2 1B0<1 0B0
        0F0<0 1F0 1F0>2 2B0<2 1B0 1B0>0
        0F0.a<0 1F0<1 2F0 2B0 2B0>1 2B0.a>0
    """
    names = [action for row in schedule.actions for action in row]
    messages = _find_messages(schedule, routes)
    if rendezvous:
        moment, message_moment = rendezvous_order(schedule)
        send_moment = receive_moment = message_moment[messages.action]
    else:
        # At one place, receives come first, then the computation, then its sends.
        moment = np.arange(len(names))
        send_moment = messages.action
        receive_moment = _latest(messages, schedule.n_ranks)

    skips = [*(route.name for route in routes), ""]

    def transfers(chosen: np.ndarray, peers: np.ndarray, way: str) -> list[Transfer]:
        columns = messages.action, messages.microbatch, messages.route
        rows = zip(*(column[chosen].tolist() for column in columns))
        return [
            Transfer(
                names[action]._replace(microbatch=microbatch),
                peer,
                way,
                skips[route],
            )
            for (action, microbatch, route), peer in zip(rows, peers[chosen].tolist())
        ]

    programs = []
    starts = np.arange(1, schedule.n_ranks)
    outboxes, inboxes = (
        np.split(order, np.searchsorted(ranks[order], starts))
        for ranks in (messages.source, messages.target)
        for order in [np.argsort(ranks, kind="stable")]
    )
    for rank, (out, into) in enumerate(zip(outboxes, inboxes)):
        own = slice(*schedule.offsets[rank : rank + 2])
        operations = [
            *names[own],
            *transfers(out, messages.target, "send"),
            *transfers(into, messages.source, "receive"),
        ]
        places = np.concatenate([moment[own], send_moment[out], receive_moment[into]])
        n_own = len(operations) - out.size - into.size
        phase = np.repeat([1, 2, 0], [n_own, out.size, into.size])
        # In rendezvous order, all messages of one action share its moment, and keep the
        # order of sending.
        order = np.lexsort((phase, places))
        programs.append(tuple(operations[k] for k in order.tolist()))
    return tuple(programs)


def rendezvous_order(schedule: Table) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places of all computations and messages in one common order.

    Args:
        schedule: A schedule.

    Returns:
        For each action the place of the computation, and the place of the message with
        its result, as integers. No two places of one rank are equal.

    Raises:
        ScheduleError: If the ranks wait for each other in a circle.
    """
    step, stuck = unit_steps(schedule)
    if (stuck != NONE).any():
        raise ScheduleError(
            f"schedule {schedule.name!r} cannot be lowered: its ranks wait for each "
            "other in a circle; schedule.validate() shows where"
        )
    # In a step computations come first. Then come messages, the one furthest along the
    # way forward and back through all stages first.
    n_stages = schedule.n_stages
    forward = schedule.kind == FORWARD
    way = np.where(forward, schedule.stage, 2 * n_stages - 1 - schedule.stage)
    compute = step * (2 * n_stages + 1)
    message = compute + (2 * n_stages - way)
    return compute, message


def _find_messages(schedule: Table, routes: Sequence[Route]) -> _Messages:
    table = locate(schedule)
    needed, rank = member_suppliers(schedule, table), schedule.action_ranks
    user, microbatch = schedule.members
    parts = [(needed, microbatch, user, np.full(user.size, NONE))]
    for number, (_, source, target) in enumerate(routes):
        for row, start, end in ((0, source, target), (1, target, source)):
            action, user = table[row, start], table[row, end]
            route = np.full(action.size, number)
            parts.append((action, np.arange(action.size), user, route))
    columns = np.stack([*map(np.concatenate, zip(*parts))])
    # Evaluation has no backward.
    columns = columns[:, (columns[0] != NONE) & (columns[2] != NONE)]
    columns = columns[:, rank[columns[0]] != rank[columns[2]]]
    action, microbatch, user, route = columns[:, np.lexsort(columns[[3, 1, 0]])]
    return _Messages(action, microbatch, user, rank[action], rank[user], route)


def _latest(messages: _Messages, n_ranks: int) -> np.ndarray:
    """Finds for each message the first action that must not run before it arrives.

    This action needs the message, or a later message from the same rank.
    """
    place = messages.user.copy()
    pair = messages.target * n_ranks + messages.source
    order = np.argsort(pair, kind="stable")
    for chosen in np.split(order, np.flatnonzero(np.diff(pair[order])) + 1):
        place[chosen] = np.minimum.accumulate(place[chosen][::-1])[::-1]
    return place
