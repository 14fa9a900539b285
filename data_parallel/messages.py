"""Messages of a unit: buffers that are used again, and tags that keep units apart."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from divisible.communication.buffers import page_locked

# Two ranks may be at units that are some apart, but never so many.
_N_UNIT_TAGS = 4096
_KINDS = 4
#: Kinds of messages. There is one message of the first kind for each exchange.
OPENING, CONTRIBUTION, MESSAGE, TOTAL = range(_KINDS)


class Pending(NamedTuple):
    """A message that is under way.

    Attributes:
        request: Request of MPI.
        peer: The rank at the other end.
        what: Words for the wait, such as ``'rank 1 to send'``, for error messages.
    """

    request: MPI.Request
    peer: int
    what: str


#: Yields the messages that it waits for. Others may run until they are complete.
Steps = Generator[list[Pending], None, None]


class Received(NamedTuple):
    """A message that is being received.

    Attributes:
        buffer: The buffer of the message.
        pending: Message to wait for before the buffer is read.
    """

    buffer: np.ndarray
    pending: Pending


class Buffers:
    """Buffers for messages, used again for any message that is not longer.

    There are never more buffers than were in use at once, for any number of message
    sizes. If no free buffer is long enough, a new one replaces one that is too short.
    """

    def __init__(self) -> None:
        # Free buffers by size. Their sizes are in a list of their own, for searching.
        self._free: list[np.ndarray] = []
        self._sizes: list[int] = []
        self._allocate = np.empty

    @property
    def n_bytes(self) -> int:
        """The bytes of the free buffers."""
        return sum(self._sizes)

    def take(self, n_bytes: int) -> np.ndarray:
        """Returns a buffer of uint8, of this length or longer."""
        place = bisect_left(self._sizes, n_bytes)
        if place < len(self._sizes):
            del self._sizes[place]
            return self._free.pop(place)
        if self._sizes:
            self._sizes.pop()
            self._free.pop()
        return self._allocate(n_bytes, np.uint8)

    def give_back(self, buffer: np.ndarray) -> None:
        """Adds a buffer to the free ones."""
        place = bisect_left(self._sizes, buffer.size)
        self._sizes.insert(place, buffer.size)
        self._free.insert(place, buffer)

    def clear(self, are_page_locked: bool = False) -> None:
        """Drops all free buffers.

        Args:
            are_page_locked: Whether new buffers are page-locked, for copies from and to
                a GPU.
        """
        self._allocate = page_locked if are_page_locked else np.empty
        self._free.clear()
        self._sizes.clear()


class Messages:
    """The messages of one unit.

    Args:
        comm: Communicator of the exchange.
        number: Number of the unit, equal on all ranks. No rank begins an exchange while
            another rank is still in the one before.
        buffers: Buffers for received and sent messages.
        about: Words for the content, for error messages.
    """

    def __init__(
        self, comm: MPI.Comm, number: int, buffers: Buffers, about: str
    ) -> None:
        self._comm, self._buffers, self._about = comm, buffers, about
        self._first_tag = _KINDS * (1 + number % _N_UNIT_TAGS)
        self._taken: list[np.ndarray] = []
        self._sent: list[Pending] = []

    def buffer(self, n_bytes: int) -> np.ndarray:
        """Returns a buffer that belongs to this unit until its end."""
        self._taken.append(self._buffers.take(n_bytes))
        return self._taken[-1][:n_bytes]

    def receive(self, kind: int, source: int, n_bytes: int) -> Received:
        """Starts to receive a message."""
        buffer = self.buffer(n_bytes)
        request = self._comm.Irecv([buffer, MPI.BYTE], source, self._first_tag + kind)
        what = f"rank {source} to send {self._about}"
        return Received(buffer, Pending(request, source, what))

    def send(self, kind: int, destination: int, buffer: np.ndarray) -> None:
        """Starts to send a message."""
        tag = self._first_tag + kind
        request = self._comm.Isend([buffer, MPI.BYTE], destination, tag)
        what = f"rank {destination} to take {self._about}"
        self._sent.append(Pending(request, destination, what))

    def sent(self) -> list[Pending]:
        """Returns the messages that this rank has sent."""
        return self._sent

    def end(self) -> None:
        """Frees all buffers; no message may be under way."""
        for buffer in self._taken:
            self._buffers.give_back(buffer)
        self._taken.clear()
