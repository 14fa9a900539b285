"""The messages of a unit, from the gradients of all ranks to their mean on all ranks.

::

    on each node     contributions  ---> rank of the lane: adds up, encodes
    between nodes    a message for each part ---> rank that adds it up, encodes
    between nodes    <--- the sums of all parts, to the lane's rank on each node
    on each node     <--- the same sums, to the other ranks

A generator runs these steps. It yields the messages that it waits for, so that other
units go on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from data_parallel.coder import Coder
from data_parallel.layout import ExchangeUnit, Part
from data_parallel.messages import (
    CONTRIBUTION,
    MESSAGE,
    TOTAL,
    Messages,
    Pending,
    Received,
    Steps,
)
from divisible.communication.waiting import kept_at_errors

#: The parts of an exchange that take time.
PARTS = ("encode", "wire", "sum", "decode")


class Clock:
    """The seconds and bytes of an exchange.

    Attributes:
        seconds: Seconds by part. All time without computation counts as ``'wire'``.
        sent_bytes: Bytes that this rank has sent to other nodes.
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
    """The ranks of each node, as seen from one rank.

    Args:
        nodes: The ranks of each node, in rank order.
        rank: This rank.

    Attributes:
        rank (int): This rank.
        node (int): The number of this rank's node.
        nodes: The ranks of each node, in rank order.
    """

    def __init__(self, nodes: Sequence[Sequence[int]], rank: int) -> None:
        self.nodes, self.rank = nodes, rank
        self.node = next(i for i, ranks in enumerate(nodes) if rank in ranks)

    @property
    def neighbours(self) -> list[int]:
        """The other ranks of this node."""
        return [rank for rank in self.nodes[self.node] if rank != self.rank]

    def other_nodes(self) -> list[int]:
        """Returns the other nodes, each beginning with the one after its own."""
        n = len(self.nodes)
        return [(self.node + i) % n for i in range(1, n)]


class UnitExchange:
    """The part of one rank in the exchange of a unit.

    Args:
        unit: The unit.
        lane: The rank that serves the lane, by node.
        placement: Placement of this rank.
        coder: Coder of this rank's arrays.
        messages: Messages of the unit.
        clock: Clock that counts seconds and bytes.
    """

    def __init__(
        self,
        unit: ExchangeUnit,
        lane: Sequence[int],
        placement: Placement,
        coder: Coder,
        messages: Messages,
        clock: Clock,
    ) -> None:
        self._parts, self._lane, self._placement = unit.parts, lane, placement
        self._coder, self._messages, self._clock = coder, messages, clock
        self._node = placement.node
        self._filled_others = [
            node for node in placement.other_nodes() if not unit.parts[node].is_empty
        ]
        self._own_part = unit.parts[self._node]

    def run(self) -> Steps:
        """Yields the messages to wait for, until the mean is in the arrays."""
        server = self._lane[self._node]
        with kept_at_errors(self._messages):
            if self._placement.rank == server:
                yield from self._serve()
            else:
                yield from self._contribute(server)
            yield self._messages.sent()
        self._messages.end()

    def _contribute(self, server: int) -> Steps:
        """Sends contributions to the rank that serves the lane, and reads the mean."""
        coder, messages = self._coder, self._messages
        # Contributions are sent, and sums received, in the other rank's order.
        others = [self._parts[other] for other in self._filled_others]
        own = [] if self._own_part.is_empty else [self._own_part]
        totals = [
            (part, messages.receive(TOTAL, server, coder.message_bytes(part)))
            for part in (*own, *others)
        ]
        for part in (*others, *own):
            contribution = messages.buffer(coder.contribution_bytes(part))
            with self._clock.of("encode"):
                coder.contribute(part, contribution)
            messages.send(CONTRIBUTION, server, contribution)
        for part, (total, pending) in totals:
            yield [pending]
            with self._clock.of("decode"):
                coder.read(part, total)

    def _serve(self) -> Steps:
        """Adds up for this node and for its part, and passes on other nodes' sums."""
        # All receives come first, so that no message arrives before its receive.
        incoming = self._receive_all()
        for other in self._filled_others:
            message = yield from self._sum_of_node(other, incoming.contributions)
            self._messages.send(MESSAGE, self._lane[other], message)
            self._clock.sent_bytes += self._coder.payload_bytes(self._parts[other])
        if not self._own_part.is_empty:
            yield from self._add_up(incoming)
        for other, (total, pending) in incoming.totals.items():
            yield [pending]
            self._send_total(self._parts[other], total, self._placement.neighbours)

    def _receive_all(self) -> _Incoming:
        coder, lane, receive = self._coder, self._lane, self._messages.receive
        own, others = self._own_part, self._placement.other_nodes()
        filled = [*self._filled_others, *([] if own.is_empty else [self._node])]
        contributions = {
            (rank, number): receive(
                CONTRIBUTION, rank, coder.contribution_bytes(self._parts[number])
            )
            for rank in self._placement.neighbours
            for number in filled
        }
        node_sums = {}
        if not own.is_empty:
            n_bytes = coder.message_bytes(own)
            node_sums = {i: receive(MESSAGE, lane[i], n_bytes) for i in others}
        totals = {
            i: receive(TOTAL, lane[i], coder.message_bytes(self._parts[i]))
            for i in self._filled_others
        }
        return _Incoming(contributions, node_sums, totals)

    def _sum_of_node(
        self, number: int, contributions: Mapping[tuple[int, int], Received]
    ) -> Generator[list[Pending], None, np.ndarray]:
        """Waits for this node's contributions to a part, and returns their sum."""
        part, placement = self._parts[number], self._placement
        if placement.neighbours:
            yield [contributions[rank, number].pending for rank in placement.neighbours]
        given = [
            None if rank == placement.rank else contributions[rank, number].buffer
            for rank in placement.nodes[self._node]
        ]
        out = self._messages.buffer(self._coder.message_bytes(part))
        with self._clock.of("encode"):
            self._coder.write_sum(part, given, out)
        return out

    def _add_up(self, incoming: _Incoming) -> Steps:
        """Adds up all nodes' sums for this node's part, and sends the total to all."""
        part, others = self._own_part, incoming.node_sums
        own = yield from self._sum_of_node(self._node, incoming.contributions)
        yield [received.pending for received in others.values()]
        sums = [
            own if node == self._node else others[node].buffer
            for node in range(len(self._placement.nodes))
        ]
        total = self._messages.buffer(self._coder.message_bytes(part))
        with self._clock.of("sum"):
            self._coder.add_up(part, sums, total)
        self._clock.sent_bytes += len(others) * self._coder.payload_bytes(part)
        servers = [self._lane[node] for node in others]
        self._send_total(part, total, [*servers, *self._placement.neighbours])

    def _send_total(self, part: Part, total: np.ndarray, to: Sequence[int]) -> None:
        for rank in to:
            self._messages.send(TOTAL, rank, total)
        with self._clock.of("decode"):
            self._coder.read(part, total)


class _Incoming(NamedTuple):
    """The messages that come to a rank that serves a lane.

    Attributes:
        contributions: Contributions by rank of this node, and number of the part.
        node_sums: Sums of other nodes for this node's own part, by node.
        totals: Totals of the other nodes' parts, by node.
    """

    contributions: Mapping[tuple[int, int], Received]
    node_sums: Mapping[int, Received]
    totals: Mapping[int, Received]
