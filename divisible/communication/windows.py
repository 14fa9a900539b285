"""Windows: memory of a receiver, into which the sender of a channel puts messages.

::

    receiver                              window                     sender
    has room for message k in slot 2  --> credits[k] = 2
                                          credits[k]  ------------>  reads 2
                                          slots[2]    <------------  puts the arrays
    reads: as expected                <-- notes[k]    <------------  "as expected"
    uses the arrays where they are

A credit or a note is one number of 64 bits. Its upper half has the number of its
message, which begins again at 0 after 2^31 messages. So neither end changes what the
other has written, and a number from before is never taken for a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from divisible.communication.narrowing import n_bytes, on_wire
from divisible.communication.signatures import Signature

#: Most messages of a channel that are expected at a time.
N_EXPECTED = 64
# Numbers of messages begin again behind the largest that fits beside the sign.
_N_MESSAGES = 1 << 31
# Bytes of all credits and notes of a window.
_NUMBER_BYTES = 2 * N_EXPECTED * 8
# Arrays begin at multiples of this, as those of other allocators do.
_ALIGNMENT = 64
_LOW = (1 << 32) - 1
#: A note that a message fills its slot; that its signature follows as a message of MPI.
#: Smaller notes are numbers of samples.
FULL, NEW = _LOW - 2, _LOW - 3
#: A credit for a message of MPI, because there is no slot.
BY_MPI = _LOW - 2


class Numbers:
    """Numbers that one end of a channel writes, and the other one reads.

    Args:
        words (numpy.ndarray): Memory for them, `N_EXPECTED` of dtype int64.
    """

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def write(self, message: int, number: int) -> None:
        """Writes the number of a message, after all that was written before."""
        # Processors of this kind of machine write in the order of the program.
        half = message % _N_MESSAGES << 32
        self._words[message % N_EXPECTED] = half | number + 1

    def read(self, message: int) -> int | None:
        """Returns the number of a message; ``None`` until it has been written."""
        word = int(self._words[message % N_EXPECTED])
        if word >> 32 != message % _N_MESSAGES or not word & _LOW:
            return None
        return (word & _LOW) - 1


class Layout(NamedTuple):
    """The places of a window in memory.

    Attributes:
        start (int): The first byte.
        n_slots (int): Number of slots.
    """

    start: int
    n_slots: int

    def end(self, agreed: Signature) -> int:
        """Returns the byte behind the window.

        Args:
            agreed: Signature of a message that fills a slot.
        """
        return self.start + _NUMBER_BYTES + self.n_slots * _offsets(agreed)[-1]


class Window:
    """A window, as either end sees it.

    Args:
        content (memoryview): Bytes of the memory.
        layout (Layout): Places of the window in it.
        agreed: Signature of a message that fills a slot.

    Attributes:
        agreed: See above.
        credits (Numbers): For each message a slot, or `BY_MPI`.
        notes (Numbers): For each message in a slot its number of samples, `FULL` or
            `NEW`.
        slots: For each slot its arrays, as they are sent.
    """

    def __init__(self, content: memoryview, layout: Layout, agreed: Signature) -> None:
        self.agreed = agreed
        start = layout.start + _NUMBER_BYTES
        words = np.frombuffer(content[layout.start : start], np.int64)
        self.credits = Numbers(words[:N_EXPECTED])
        self.notes = Numbers(words[N_EXPECTED:])
        offsets = _offsets(agreed)
        self.slots = [
            _arrays(content, start + number * offsets[-1], offsets, agreed)
            for number in range(layout.n_slots)
        ]


def _arrays(
    content: memoryview, start: int, offsets: Sequence[int], agreed: Signature
) -> list[np.ndarray]:
    """Returns the arrays of a slot, each of which owns its part of the memory."""
    arrays = []
    for spec, offset in zip([s for s in agreed if s.shape is not None], offsets):
        shape, dtype = on_wire(spec)
        begin = start + offset
        part = content[begin : begin + n_bytes(spec)]
        # Not a view of another array, because references to this one are counted.
        arrays.append(np.ndarray(shape, dtype, part))
    return arrays


def _offsets(agreed: Signature) -> list[int]:
    """Returns where the arrays of a slot begin, and the bytes of the slot."""
    offsets, end = [], 0
    for spec in agreed:
        if spec.shape is not None:
            offsets.append(end)
            end += -(-n_bytes(spec) // _ALIGNMENT) * _ALIGNMENT
    return [*offsets, end]
