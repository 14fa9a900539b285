"""Encode, send, add up in float32, encode again, send: two roundings for any P.

::

    replica 0   g0 --encode-->  c0  -.                                .-->  mean
    replica 1   g1 --encode-->  c1  --+-- decoded and added up in     +-->  mean
    replica 2   g2 --encode-->  c2  -'    rank order, --encode-->  c -'     same bits

The error of an element is at most ``first + u (|exact| + first) + a(|exact| + first)``.
Here ``first`` is the sum over the replicas of the largest error of one rounding of
their part; see :class:`~divisible.communication.wire.WireDtype`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from data_parallel.coder import Gradients
from data_parallel.layout import Bucket, Segment
from data_parallel.nodes import nodes_of, shares
from data_parallel.residuals import OpenResiduals
from data_parallel.settings import Settings
from divisible.communication.wire import Fields


def node_parts(
    gradients: Sequence[np.ndarray],
    local_size: int,
    n_samples: Sequence[int] | None,
) -> list[np.ndarray]:
    """Returns for each node the weighted sum of its replicas' gradients, unrounded.

    Args:
        gradients: Flat float32 arrays, one for each replica, in rank order.
        local_size: Number of replicas of a node.
        n_samples: Number of samples of each replica's minibatch.
    """
    weights = shares(n_samples, len(gradients))
    parts = []
    for replicas in nodes_of(len(gradients), local_size):
        part = weights[replicas[0]] * gradients[replicas[0]]
        for replica in replicas[1:]:
            part += weights[replica] * gradients[replica]
        parts.append(part)
    return parts


def mean_of_parts(
    parts: Sequence[np.ndarray], settings: Settings
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the mean that each replica gets, and the errors of the first rounding.

    Args:
        parts: Parts of the nodes, flat float32, in order. The part of a single node is
            not sent between nodes, and not rounded.
        settings: Settings of the exchange.

    Returns:
        The mean, NaN as a whole if one of its numbers cannot be encoded. Then, for each
        node, the difference between its part and the sent numbers.
    """
    if len(parts) == 1:
        return parts[0], [np.zeros_like(parts[0])]
    wire, block, n = settings.wire, settings.block, parts[0].size
    total, lost = np.empty_like(parts[0]), []
    message = np.empty(wire.n_bytes(n, block), np.uint8)
    fields, are_finite = wire.fields(message, n, block), []
    for number, part in enumerate(parts):
        are_finite.append(wire.write(part, block, fields))
        lost.append(part - wire.decode(message, n, block))
        wire.read(fields, block, total, add=number > 0)
    are_finite.append(wire.write(total, block, fields))
    mean = wire.decode(message, n, block)
    if not all(are_finite):
        mean[:] = np.nan
    return mean, lost


def residual(lost: Any, share: np.float32, before: Any) -> Any:
    """Returns the residual of a replica's next gradient, for the errors of its part.

    Args:
        lost: Rounding errors of the weighted gradient.
        share: The weight.
        before: The residual before. A replica without samples has sent nothing of it,
            and keeps it.
    """
    return lost / share if share else before


class TwoRoundingsCode:
    """The coded regions of messages that are decoded to be added up.

    Args:
        settings: Settings of the exchange.
        gradients: Gradients of this replica.
        residuals: Residuals of this replica; ``None`` without error feedback.
    """

    contribution_bytes, has_infinity = 4, False

    def __init__(
        self, settings: Settings, gradients: Gradients, residuals: OpenResiduals | None
    ) -> None:
        self._wire, self._block = settings.wire, settings.block
        self._gradients, self._residuals = gradients, residuals
        # Keys are the types of the arrays.
        self._scratches: dict[type, Any] = {}

    def prepare(self, bucket: Bucket) -> None:
        """Adds the residuals of arrays that are not rounded now."""
        if self._residuals is not None:
            for i in bucket.exact:
                before = self._residuals.before(i)
                self._gradients.flat[i] += before
                self._residuals.after(i)[:] = 0 if self._gradients.share else before

    def agree(self, bucket: Bucket, largest: np.ndarray) -> None:
        """Does nothing: each block has its own scale, so no rank asks for maxima."""

    def n_bytes(self, n: int) -> int:
        """Returns the bytes of ``n`` elements in a message between nodes."""
        return self._wire.n_bytes(n, self._block)

    def fields(self, message: np.ndarray, n: int) -> Fields:
        """Returns the scales and the codes of ``n`` elements."""
        return self._wire.fields(message, n, self._block)

    def of_segment(self, fields: Fields, place: slice) -> Fields:
        """Returns the fields of some of the elements."""
        return self._wire.part(fields, place, self._block)

    def contribute(self, segment: Segment, out: np.ndarray) -> None:
        """Writes the weighted gradient, float32."""
        self._weigh(segment, out.view(np.float32))
        if self._residuals is not None:
            # Another replica encodes this contribution.
            self._lose(segment, 0)

    def write_sum(
        self, segment: Segment, contributions: Sequence[np.ndarray | None], to: Fields
    ) -> Any:
        """Encodes the sum of a node's contributions."""
        gradients = self._gradients
        if len(contributions) == 1 and self._residuals is None:
            own = gradients.of(segment)
            return self._wire.write(own, self._block, to, gradients.share)
        total, own = self._two_scratches(segment, to.codes)
        for number, contribution in enumerate(contributions):
            if contribution is not None:
                values = contribution.view(np.float32)
            else:
                values = self._weigh(segment, own)
            if number == 0:
                np.copyto(total, values)
            else:
                total += values
        is_finite = self._wire.write(total, self._block, to)
        if self._residuals is not None:
            self._wire.read(to, self._block, own)
            total -= own
            self._lose(segment, total)
        return is_finite

    def add_up(self, segment: Segment, messages: Sequence[Fields], to: Fields) -> bool:
        """Decodes messages, adds them up in the order of the nodes, and encodes."""
        total, _ = self._two_scratches(segment, to.codes)
        for number, message in enumerate(messages):
            self._wire.read(message, self._block, total, add=number > 0)
        return self._wire.write(total, self._block, to)

    def read(self, segment: Segment, fields: Fields) -> None:
        """Decodes the mean into the arrays."""
        self._wire.read(fields, self._block, self._gradients.of(segment))

    def _lose(self, segment: Segment, lost: Any) -> None:
        """Stores the residual for the errors of some elements."""
        before = self._residuals.before(segment.array)[segment.elements]
        kept = residual(lost, self._gradients.share, before)
        self._residuals.lose(segment, kept)

    def _weigh(self, segment: Segment, out: Any) -> Any:
        values, share = self._gradients.of(segment), self._gradients.share
        if self._residuals is None:
            return np.multiply(values, share, out=out)
        np.add(values, self._residuals.before(segment.array)[segment.elements], out=out)
        out *= share
        return out

    def _two_scratches(self, segment: Segment, like: Any) -> Any:
        """Returns two arrays for a segment's numbers, on another array's device."""
        n = segment.elements.stop - segment.elements.start
        found = self._scratches.get(type(like))
        if found is None or found.shape[1] < n:
            found = np.empty_like(like, np.float32, shape=(2, n))
            self._scratches[type(like)] = found
        return found[:, :n]
