"""Arrays that receive messages of one signature, again and again."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

from divisible.communication.buffers import HostBuffers
from divisible.communication.narrowing import decoded, n_bytes, on_wire
from divisible.communication.signatures import Signature, Tensor, TensorSpec
from divisible.communication.static_shapes import Room

# MPI counts are 32-bit in MPI 3, so a message has at most 2 GiB. Larger arrays are sent
# in pieces of this many bytes.
PIECE_BYTES = 1 << 30


class ReceivedArrays:
    """Arrays that messages of one signature come into.

    They are free when nothing else refers to them. So the caller need not give them
    back; dropping the arrays is enough.

    Args:
        agreed: Signature of the largest messages.
        arrays: An array for each one of a message, as it is sent.
        room (Room): Tells smaller messages, which take the beginning of each array.
        memory: Returns the received arrays from those of the messages.

    Attributes:
        is_posted (bool): Whether a message may come.
        arrays: The arrays.
        room (Room): See above.
    """

    def __init__(
        self, agreed: Signature, arrays: Sequence[Any], room: Room, memory: HostBuffers
    ) -> None:
        self.is_posted, self.arrays, self.room = False, arrays, room
        self._agreed, self._memory = agreed, memory
        self._references_if_free = self._references()

    def _references(self) -> list[int]:
        return [sys.getrefcount(array) for array in self.arrays]

    def is_free(self) -> bool:
        """Returns whether another message may come into the arrays."""
        return not self.is_posted and self._references() == self._references_if_free

    def message(self, n_samples: int | None = None) -> tuple[Tensor, ...]:
        """Returns the received message.

        Args:
            n_samples (int or None): Number of samples of a message that does not fill
                the arrays.
        """
        specs, shortened = self._agreed, n_samples is not None
        if shortened:
            specs = self.room.specs(n_samples)
        incoming, arrays = self._memory.incoming, iter(self.arrays)
        tensors = []
        for spec in specs:
            array = None
            if spec.shape is not None:
                array = next(arrays)
                array = incoming(beginning(array, spec) if shortened else array)
                array = decoded(array, spec) if spec.wire else array
                array = spec.received(array) if spec.order else array
            tensors.append(Tensor(array, spec.requires_grad, spec.key))
        return tuple(tensors)


class ReceiveBuffer(ReceivedArrays):
    """Arrays with MPI's requests to receive into them.

    Args:
        agreed: Signature of the largest messages.
        room (Room): Tells smaller messages.
        memory: Makes the arrays.
        comm (mpi4py.MPI.Comm): Communicator of the sender.
        peer (int): Rank of the sender.
        tag (int): Tag of the messages.

    Attributes:
        most_bytes (int): The most bytes of one of MPI's messages.
    """

    def __init__(
        self,
        agreed: Signature,
        room: Room,
        memory: HostBuffers,
        comm: MPI.Comm,
        peer: int,
        tag: int,
    ) -> None:
        arrays = [
            memory.allocate(*on_wire(spec)) for spec in agreed if spec.shape is not None
        ]
        super().__init__(agreed, arrays, room, memory)
        pieces = list(pieces_of(self.arrays))
        self.most_bytes = max(piece.size for piece in pieces)
        self.requests = [
            comm.Recv_init([piece, MPI.BYTE], peer, tag) for piece in pieces
        ]
        self.statuses = [MPI.Status() for _ in pieces]
        self._references_if_free = self._references()

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        # Python collects arrays, but not requests, which keep a communicator from being
        # freed. A request that is under way stays. When Python ends, the names of this
        # module may be gone already, so ``ends`` is an argument.
        if not ends() and not self.is_posted and not MPI.Is_finalized():
            for request in self.requests:
                request.Free()

    def post(self) -> None:
        """Starts to receive a message."""
        self.is_posted = True
        MPI.Prequest.Startall(self.requests)

    def is_filled(self) -> bool:
        """Returns whether the posted message has come."""
        return MPI.Request.Testall(self.requests, self.statuses)

    def received(self) -> tuple[Tensor, ...] | None:
        """Returns the message that has come; ``None`` if a new signature follows."""
        n_first = self.statuses[0].Get_count(MPI.BYTE)
        if not n_first:
            return None
        room = self.room
        if room.piece is None:
            return self.message()
        n_told = n_first
        if room.piece:
            n_told = self.statuses[room.piece].Get_count(MPI.BYTE)
        if n_told == room.n_bytes:
            return self.message()
        return () if n_first == 1 else self.message(room.n_samples(n_told))


def beginning(array: Any, spec: TensorSpec) -> Any:
    """Returns the part of a contiguous buffer that a smaller array takes."""
    shape, _ = on_wire(spec)
    return array.reshape(-1)[: math.prod(shape)].reshape(shape)


def pieces_of(arrays: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Yields the bytes of the arrays in pieces that fit one MPI message each.

    There is always at least one piece, and none is empty, so that an empty message
    can stand for "a new signature follows".
    """
    some = False
    for array in arrays:
        flat = array.reshape(-1).view(np.uint8)
        for start in range(0, flat.size, PIECE_BYTES):
            some = True
            yield flat[start : start + PIECE_BYTES]
    if not some:
        yield np.zeros(1, dtype=np.uint8)


def n_pieces(specs: Signature) -> int:
    """Returns the number of MPI messages that a message with a signature has."""
    sizes = [0 if spec.shape is None else n_bytes(spec) for spec in specs]
    return sum(-(-size // PIECE_BYTES) for size in sizes) or 1
