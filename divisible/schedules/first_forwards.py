"""The first forwards of a minibatch: those that need no backward of it on any rank.

A rank may run them while it does not know yet whether its parameters stay as they are.
If they do not, every rank drops these forwards and begins again. So the messages of
the first forwards must be complete among themselves. A rank stops before its first
action that is no forward, or before a message that another rank sends after such an
action::

    rank 0  0F0 0F1 0F2 | 0B0 ...
    rank 1      1F0 1F1 | 1B0 1F2 ...
    rank 2          2F0 | 2B0 2F1 2B1 ...

Messages that the first forwards of one rank send, and those of the next rank do not
receive, are dropped: here 0F2 and 1F1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from divisible.schedules.actions import FORWARD, KINDS, Action, Operation
from divisible.schedules.rank_program import Channel, Slot


class FirstForwards(NamedTuple):
    """The first forwards of one rank.

    Attributes:
        end: Position behind them in the rank's program.
        n_sent: Number of messages to this rank from the first forwards of others, by
            channel.
        n_received: Number of them that the first forwards of this rank receive.
    """

    end: int
    n_sent: Mapping[Channel, int]
    n_received: Mapping[Channel, int]


def first_forwards(programs: Sequence[Sequence[Operation]], rank: int) -> FirstForwards:
    """Returns the first forwards of a rank.

    Args:
        programs: The actions and messages of every rank, as
            :func:`~divisible.schedules.lowering.lower` returns them.
        rank (int): The rank.

    Example:
        >>> from divisible.schedules import one_f_one_b
        >>> from divisible.schedules.lowering import lower
        >>> programs = lower(one_f_one_b(3, 4), rendezvous=False)
        >>> for rank, program in enumerate(programs):
        ...     print(*program[: first_forwards(programs, rank).end])
        0F0 0F0>1 0F1 0F1>1 0F2 0F2>1
        0F0<0 1F0 1F0>2 0F1<0 1F1 1F1>2
        1F0<1 2F0
        >>> first = first_forwards(programs, 1)
        >>> sum(first.n_sent.values()), sum(first.n_received.values())
        (3, 2)
    """
    ends, sent = [0] * len(programs), set()
    n_before = -1
    while sum(ends) > n_before:
        n_before = sum(ends)
        for number, operations in enumerate(programs):
            for operation in operations[ends[number] :]:
                if isinstance(operation, Action):
                    if operation.kind != KINDS[FORWARD]:
                        break
                elif operation.direction == "send":
                    sent.add((operation.action, operation.skip, operation.peer))
                elif (operation.action, operation.skip, number) not in sent:
                    break
                ends[number] += 1
    received = [
        (operation.action, operation.skip)
        for operation in programs[rank][: ends[rank]]
        if not isinstance(operation, Action) and operation.direction == "receive"
    ]
    to_rank = [(action, skip) for action, skip, peer in sent if peer == rank]
    return FirstForwards(ends[rank], _by_channel(to_rank), _by_channel(received))


def _by_channel(messages: Sequence[tuple[Action, str]]) -> Counter[Channel]:
    return Counter(Slot.of(action, skip).channel for action, skip in messages)
