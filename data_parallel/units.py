"""The messages of a unit, from the gradients of all ranks to their mean on all.

::

    on each node     contributions  ---> rank of the lane: adds up, encodes
    between nodes    a message for each part ---> rank that adds it up, encodes
    between nodes    <--- the sums of all parts, to the lane's rank on each node
    on each node     <--- the same, passed on

Each step is a generator's: it yields what it waits for, so that others of its kind go
on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from data_parallel.coder import Coder
from data_parallel.layout import Part, Unit
from data_parallel.messages import (
    CONTRIBUTION,
    MESSAGE,
    TOTAL,
    Messages,
    Pending,
    kept_at_errors,
)

#: The parts of an exchange that take time.
PARTS = ("encode", "wire", "sum", "decode")


class Clock:
    """Where the time of an exchange goes.

    Attributes:
        seconds: By part; what is not computing is ``'wire'``.
        sent_bytes: What this rank has sent to other nodes.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.sent_bytes = 0

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Counts the time within as that of a part."""
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start


class Placement:
    """Which ranks are on which node, seen from one of them.

    Args:
        nodes: The ranks of each node, in rank order.
        rank: This one.

    Attributes:
        rank (int): This one.
        node (int): The number of its node.
        nodes: As given.
    """

    def __init__(self, nodes: Sequence[Sequence[int]], rank: int) -> None:
        self.nodes, self.rank = nodes, rank
        self.node = next(i for i, ranks in enumerate(nodes) if rank in ranks)

    @property
    def neighbours(self) -> list[int]:
        """The other ranks of this node."""
        return [rank for rank in self.nodes[self.node] if rank != self.rank]

    def other_nodes(self) -> list[int]:
        """Returns the other nodes, beginning with the next: not all with the same."""
        n = len(self.nodes)
        return [(self.node + i) % n for i in range(1, n)]


def run(
    unit: Unit,
    lane: Sequence[int],
    placement: Placement,
    coder: Coder,
    messages: Messages,
    clock: Clock,
) -> Generator[list[Pending], None, None]:
    """Yields what this rank waits for next, until the mean is in the arrays.

    Args:
        unit: What is added up.
        lane: The rank that serves it, by node.
        placement: Of this rank.
        coder: Of this rank's arrays.
        messages: Of the unit.
        clock: Counts time and bytes.
    """
    server = lane[placement.node]
    with kept_at_errors(messages):
        if placement.rank == server:
            yield from _serve(unit, lane, placement, coder, messages, clock)
        else:
            yield from _contribute(unit, server, placement, coder, messages, clock)
        yield messages.sent()
    messages.end()


def _contribute(
    unit: Unit,
    server: int,
    placement: Placement,
    coder: Coder,
    messages: Messages,
    clock: Clock,
) -> Generator[list[Pending], None, None]:
    # In the order in which the other rank needs the one, and has the other.
    order = [*placement.other_nodes(), placement.node]
    in_order = [unit.parts[i] for i in order if not unit.parts[i].is_empty]
    own = unit.parts[placement.node]
    totals = [] if own.is_empty else [own]
    totals += [part for part in in_order if part is not own]
    received = [
        messages.receive(TOTAL, server, coder.message_bytes(part)) for part in totals
    ]
    for part in in_order:
        contribution = messages.buffer(coder.contribution_bytes(part))
        with clock.of("encode"):
            coder.contribute(part, contribution)
        messages.send(CONTRIBUTION, server, contribution)
    for part, (total, pending) in zip(totals, received):
        yield [pending]
        with clock.of("decode"):
            coder.read(part, total)


def _serve(
    unit: Unit,
    lane: Sequence[int],
    placement: Placement,
    coder: Coder,
    messages: Messages,
    clock: Clock,
) -> Generator[list[Pending], None, None]:
    node, others = placement.node, placement.other_nodes()
    own_part = unit.parts[node]
    filled = [other for other in others if not unit.parts[other].is_empty]

    # All receives come first, so that nothing arrives that nobody awaits.
    contributions = {
        (rank, number): messages.receive(
            CONTRIBUTION, rank, coder.contribution_bytes(unit.parts[number])
        )
        for rank in placement.neighbours
        for number in (*others, node)
        if not unit.parts[number].is_empty
    }
    received = {}
    if not own_part.is_empty:
        received = {
            other: messages.receive(MESSAGE, lane[other], coder.message_bytes(own_part))
            for other in others
        }
    totals = {
        other: messages.receive(
            TOTAL, lane[other], coder.message_bytes(unit.parts[other])
        )
        for other in filled
    }

    def of_node(number: int) -> np.ndarray:
        part = unit.parts[number]
        out = messages.buffer(coder.message_bytes(part))
        given = [
            contributions[rank, number][0] if rank != placement.rank else None
            for rank in placement.nodes[node]
        ]
        with clock.of("encode"):
            coder.write_sum(part, given, out)
        return out

    def send_total(part: Part, total: np.ndarray, to: Sequence[int]) -> None:
        for rank in to:
            messages.send(TOTAL, rank, total)
        with clock.of("decode"):
            coder.read(part, total)

    for other in filled:
        if contributions:
            yield [contributions[rank, other][1] for rank in placement.neighbours]
        messages.send(MESSAGE, lane[other], of_node(other))
        clock.sent_bytes += coder.payload_bytes(unit.parts[other])
    if not own_part.is_empty:
        if contributions:
            yield [contributions[rank, node][1] for rank in placement.neighbours]
        own = of_node(node)
        yield [pending for _, pending in received.values()]
        total = messages.buffer(coder.message_bytes(own_part))
        with clock.of("sum"):
            coder.add_up(
                own_part,
                [
                    own if i == node else received[i][0]
                    for i in range(len(placement.nodes))
                ],
                total,
            )
        clock.sent_bytes += len(others) * coder.payload_bytes(own_part)
        to = [*(lane[other] for other in others), *placement.neighbours]
        send_total(own_part, total, to)
    for other in filled:
        total, pending = totals[other]
        yield [pending]
        send_total(unit.parts[other], total, placement.neighbours)
