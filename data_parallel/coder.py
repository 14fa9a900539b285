"""The messages of a unit, as a replica writes and reads them.

::

    contribution    from this replica to the one that serves the lane on its node
    node_message    sum of a node's contributions, to the replica that adds it up
    total           sum of the nodes' messages, to all replicas
    result          the total, decoded into the arrays

The coded region of a message belongs to a :class:`Code`. The exact region is added up
in float32, in rank order. At the end of a message there is a byte of flags for each
segment. They show whether a number in it was not finite, whether a replica has a
gradient there, and whether one has none.

Gradients on a GPU are coded there. All but :meth:`Coder.add_up` computes on the device.
NumPy's functions call CuPy for CuPy's arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional, Protocol

import numpy as np

from data_parallel.layout import Bucket, Part, Segment
from data_parallel.payloads import HostPayloads
from divisible.communication.wire import Fields

NOT_FINITE, PRESENT, MISSING = 1, 2, 4


class Code(Protocol):
    """The way to write, read and add up the coded region of a message."""

    #: Bytes of an element in a contribution.
    contribution_bytes: int
    #: Whether codes have infinity and NaN; otherwise flags stand for them.
    has_infinity: bool

    def prepare(self, bucket: Bucket) -> np.ndarray | None:
        """Prepares a bucket when its arrays are complete.

        Returns numbers whose maximum over all ranks is needed for coding; ``None`` if
        none is needed.
        """

    def agree(self, bucket: Bucket, largest: np.ndarray) -> None:
        """Stores the maxima over all ranks of the prepared numbers."""

    def n_bytes(self, n: int) -> int:
        """Returns the bytes of ``n`` elements in a message between nodes."""

    def fields(self, message: np.ndarray, n: int) -> Fields:
        """Returns the scales and the codes of ``n`` elements."""

    def of_segment(self, fields: Fields, place: slice) -> Fields:
        """Returns the fields of some of the elements."""

    def contribute(self, segment: Segment, out: np.ndarray) -> None:
        """Writes this replica's contribution; ``out`` is uint8."""

    def write_sum(
        self, segment: Segment, contributions: Sequence[np.ndarray | None], to: Fields
    ) -> Any:
        """Writes a node's sum, and returns whether it is finite, here or on a device.

        The contributions are uint8, in rank order, with ``None`` for this replica's.
        """

    def add_up(self, segment: Segment, messages: Sequence[Fields], to: Fields) -> bool:
        """Writes the sum of all nodes, and returns whether it is finite."""

    def read(self, segment: Segment, fields: Fields) -> None:
        """Reads the sum into the arrays."""


class Gradients(NamedTuple):
    """This replica's arrays while they are exchanged.

    Attributes:
        flat: Contiguous float32 arrays in one dimension, written in place; either
            NumPy's or CuPy's.
        are_present: For each array whether it has a gradient; the others are zeros.
        share: The weight of this replica in the mean.
    """

    flat: Sequence[Any]
    are_present: Sequence[bool]
    share: np.float32

    def of(self, segment: Segment) -> Any:
        """Returns the elements of a segment."""
        return self.flat[segment.array][segment.elements]


#: Makes the code of an exchange whose ranks have agreed. Arguments are this replica's
#: gradients, the ranks' numbers of samples or ``None``, and their residuals' origins.
MakeCode = Callable[
    [Gradients, Optional[Sequence[int]], Sequence[tuple[int, int]]], Code
]


class Coder:
    """Writes and reads messages.

    Args:
        code: Code of the coded regions.
        gradients: Gradients of this replica.
        payloads: Place in which messages are written and read.

    Attributes:
        flags: For each array the union of the flags of its segments.
    """

    def __init__(
        self, code: Code, gradients: Gradients, payloads: HostPayloads
    ) -> None:
        self._code, self._gradients, self._payloads = code, gradients, payloads
        self.flags = np.zeros(len(gradients.flat), np.uint8)

    def contribution_bytes(self, part: Part) -> int:
        """Returns the size of a contribution to a part."""
        n_flags = len(part.coded) + len(part.exact)
        return 4 * part.n_exact + self._code.contribution_bytes * part.n_coded + n_flags

    def message_bytes(self, part: Part) -> int:
        """Returns the size of a message between nodes."""
        return self.payload_bytes(part) + len(part.coded) + len(part.exact)

    def payload_bytes(self, part: Part) -> int:
        """Returns the size of a message without its flags."""
        return 4 * part.n_exact + self._code.n_bytes(part.n_coded)

    def contribute(self, part: Part, out: np.ndarray) -> None:
        """Writes this replica's contribution to a part."""
        payload, flags = _Message.of(out, part)
        buffer = self._payloads.to_write(payload)
        exact, coded = _Regions.of(buffer, part)
        size = self._code.contribution_bytes
        for segment in part.exact:
            self._own(segment, exact[segment.place])
        for segment in part.coded:
            start, stop = size * segment.place.start, size * segment.place.stop
            self._code.contribute(segment, coded[start:stop])
        self._payloads.written(buffer, payload)
        flags[:] = self._own_flags(part)

    def write_sum(
        self, part: Part, contributions: Sequence[np.ndarray | None], out: np.ndarray
    ) -> None:
        """Writes a node's message for a part.

        Args:
            part: The part.
            contributions: Contributions of the node's replicas, in rank order, with
                ``None`` for this replica, which sends none.
            out: The message to write, uint8.
        """
        payload, flags = _Message.of(out, part)
        flags[:] = self._own_flags(part)
        of_others: list[_Regions | None] = []
        for given in contributions:
            if given is None:
                of_others.append(None)
                continue
            theirs = _Message.of(given, part)
            flags |= theirs.flags
            of_others.append(_Regions.of(self._payloads.to_read(theirs.payload), part))
        buffer = self._payloads.to_write(payload)
        exact, coded = _Regions.of(buffer, part)
        for segment in part.exact:
            to = exact[segment.place]
            for number, other in enumerate(of_others):
                if other is not None:
                    _add(to, other.exact[segment.place], number)
                elif number == 0:
                    self._own(segment, to)
                else:
                    to += self._gradients.share * self._gradients.of(segment)
        size, fields = self._code.contribution_bytes, self._fields(coded, part)
        are_finite = []
        for segment in part.coded:
            start, stop = size * segment.place.start, size * segment.place.stop
            of_segment = [
                None if other is None else other.coded[start:stop]
                for other in of_others
            ]
            to = self._code.of_segment(fields, segment.place)
            are_finite.append(self._code.write_sum(segment, of_segment, to))
        self._payloads.written(buffer, payload)
        for number, is_finite in enumerate(are_finite):
            if not is_finite:
                flags[number] |= NOT_FINITE

    def add_up(
        self, part: Part, messages: Sequence[np.ndarray], out: np.ndarray
    ) -> None:
        """Writes the sum of the nodes' messages for a part.

        Args:
            part: The part.
            messages: Messages in the order of the nodes.
            out: The message to write, uint8.
        """
        payload, flags = _Message.of(out, part)
        exact, coded = _Regions.of(payload, part)
        flags[:] = 0
        all_fields = []
        for number, message in enumerate(messages):
            theirs = _Message.of(message, part)
            regions = _Regions.of(theirs.payload, part)
            _add(exact, regions.exact, number)
            flags |= theirs.flags
            all_fields.append(self._fields(regions.coded, part))
        to = self._fields(coded, part)
        for number, segment in enumerate(part.coded):
            some = [self._code.of_segment(each, segment.place) for each in all_fields]
            own = self._code.of_segment(to, segment.place)
            if not self._code.add_up(segment, some, own):
                flags[number] |= NOT_FINITE

    def read(self, part: Part, message: np.ndarray) -> None:
        """Reads a part of the mean into the arrays."""
        payload, flags = _Message.of(message, part)
        exact, coded = _Regions.of(self._payloads.to_read(payload), part)
        for segment in part.exact:
            self._gradients.of(segment)[...] = exact[segment.place]
        fields = self._fields(coded, part)
        for segment in part.coded:
            self._code.read(segment, self._code.of_segment(fields, segment.place))
        self._payloads.wait()
        for segment, flag in zip((*part.coded, *part.exact), flags):
            self.flags[segment.array] |= flag

    def _fields(self, coded: Any, part: Part) -> Fields:
        return self._code.fields(coded, part.n_coded)

    def _own(self, segment: Segment, to: Any) -> None:
        np.multiply(self._gradients.of(segment), self._gradients.share, out=to)

    def _own_flags(self, part: Part) -> np.ndarray:
        present = self._gradients.are_present
        return np.array(
            [
                PRESENT if present[each.array] else MISSING
                for each in (*part.coded, *part.exact)
            ],
            np.uint8,
        )


class _Message(NamedTuple):
    """A message, or a contribution, as views of its bytes.

    Attributes:
        payload: The message without its flags.
        flags: Flags of the segments, the coded ones first.
    """

    payload: np.ndarray
    flags: np.ndarray

    @classmethod
    def of(cls, data: np.ndarray, part: Part) -> _Message:
        end = data.size - len(part.coded) - len(part.exact)
        return cls(data[:end], data[end:])


class _Regions(NamedTuple):
    """A payload, as views of its bytes in the place where it is read and written.

    Attributes:
        exact: Numbers of the exact region, float32.
        coded: Bytes of the coded region, uint8.
    """

    exact: Any
    coded: Any

    @classmethod
    def of(cls, payload: Any, part: Part) -> _Regions:
        start = 4 * part.n_exact
        return cls(payload[:start].view(np.float32), payload[start:])


def _add(total: Any, values: Any, number: int) -> None:
    if number == 0:
        np.copyto(total, values)
    else:
        total += values
