"""Channels that send tuples of arrays between the ranks of a pipeline.

A *channel* leads from one rank to another, in one direction. It carries one message per
microbatch, in an order both ends know. A message is a tuple of tensors
(:mod:`divisible.communication.signatures`). Both ends remember the last *signature*
(shapes, dtypes and memory orders) of each microbatch of the channel. So in the steady
state only the bytes of the arrays travel, into arrays whose receives were posted
before::

    microbatch's signature    sender                    receiver
    as last time              bytes of each array  -->  posted receives
    new, posted receives      empty messages       -->  posted receives, seen empty
                              the signature        -->  reads it, allocates
                              bytes of each array  -->  receives them
    first                     the signature        -->  reads it, allocates
                              bytes of each array  -->  receives them

So a new signature, such as that of a smaller last batch, is always sent first. Arrays
are never cut off, and shapes never guessed.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections import deque
from collections.abc import Container, Iterator, Sequence
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

from divisible.communication.buffers import create_buffers
from divisible.communication.narrowing import decoded, narrowed, on_wire
from divisible.communication.signatures import Signature, Tensor, signature
from divisible.communication.tags import UNUSED_TAG, channel_tags
from divisible.communication.wait_queries import WaitPlace
from divisible.communication.waiting import wait
from divisible.communication.wire import WIRE, WireDtype

# MPI counts are 32-bit in MPI 3, so a message has at most 2 GiB. Larger arrays are sent
# in pieces of this many bytes.
PIECE_BYTES = 1 << 30
# Messages are polled while a rank computes, but only if some do not fit into the
# buffers of MPI and of the network, and at most once in this many seconds.
LARGE_BYTES = 1 << 20
LOOK_SECONDS = 1e-3


class Transport:
    """Channels over mpi4py.

    Args:
        comm (mpi4py.MPI.Comm): Communicator, which may carry other messages as well,
            with other tags.
        timeout (float): Seconds a wait may take.
        xp: The module of the received arrays, ``numpy`` or ``cupy``.

    Attributes:
        rendezvous (bool): Whether sends may block until they are received.
    """

    rendezvous = False

    def __init__(self, comm: MPI.Comm, timeout: float, xp: Any = np) -> None:
        self.comm = comm
        self.timeout = timeout
        self.memory = create_buffers(xp)
        #: Called while waiting; may raise an error to end the wait.
        self.watch: Callable[[], None] | None = None
        self._sent: list[tuple[int, list[MPI.Request]]] = []
        self._has_large = False
        self._next_look = 0.0

    def sender(self, channel: int, peer: int) -> Sender:
        """Returns this rank's end of a channel that leads to rank ``peer``."""
        return Sender(self, channel, peer)

    def receiver(self, channel: int, peer: int) -> Receiver:
        """Returns this rank's end of a channel that comes from rank ``peer``."""
        return Receiver(self, channel, peer)

    def note_sizes(self, pieces: Sequence[np.ndarray]) -> None:
        """Records whether some messages are large."""
        if not self._has_large:
            self._has_large = max(piece.size for piece in pieces) >= LARGE_BYTES

    def keep(self, peer: int, requests: list[MPI.Request]) -> None:
        """Keeps sends and their buffers until the sends are complete."""
        self._sent.append((peer, requests))
        # Sends may complete in another order: skip connections wait for longer.
        self._sent = [some for some in self._sent if not MPI.Request.Testall(some[1])]

    def look(self) -> None:
        """Polls MPI, which continues large messages; to be called often."""
        if not self._has_large:
            return
        now = time.perf_counter()
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            # No message has this tag. The call alone makes MPI continue.
            self.comm.Iprobe(MPI.ANY_SOURCE, UNUSED_TAG)

    def flush(self, peers: Container[int] | None = None) -> None:
        """Waits until everything sent has left.

        Args:
            peers: Ranks to which it was sent; by default all.

        Raises:
            StallError: If the sends take longer than the timeout.
        """
        for sent in self._sent[::-1]:
            peer, requests = sent
            if peers is not None and peer not in peers:
                continue
            wait(
                lambda requests=requests: MPI.Request.Testall(requests),
                self.timeout,
                lambda peer=peer: f"rank {peer} to take what was sent to it",
                self.watch,
                WaitPlace(self.comm, peer),
            )
            self._sent.remove(sent)


class _Channel:
    def __init__(self, transport: Transport, channel: int, peer: int) -> None:
        self._transport = transport
        self._comm = transport.comm
        self._peer = peer
        self._place = WaitPlace(transport.comm, peer)
        # Tags of pieces of a known signature, of signatures, of pieces of a new one.
        self._data_tag, self._signature_tag, self._new_tag = channel_tags(channel)


class Sender(_Channel):
    """The sending end of a channel."""

    def __init__(self, transport: Transport, channel: int, peer: int) -> None:
        super().__init__(transport, channel, peer)
        # For each microbatch its signature, and the number of pieces of such a message.
        self._agreed: dict[int, tuple[Signature, int]] = {}
        self._wire: WireDtype | None = None

    def narrow(self, dtype: str) -> None:
        """Narrows wider floating-point arrays from now on.

        Args:
            dtype (str): Name of the dtype on the wire; arrays arrive in their own.
        """
        self._wire = None if dtype == "fp32" else WIRE[dtype]

    def send(self, microbatch: int, message: Sequence[Tensor]) -> None:
        """Starts to send a message, without waiting for the receiver.

        Args:
            microbatch (int): The microbatch of the message.
            message: Tensors that are not modified afterwards.

        Raises:
            TypeError: If an array cannot be narrowed; nothing is sent then.
        """
        transport = self._transport
        agreed, n_pieces = self._agreed.get(microbatch, (None, 0))
        # To describe a message takes longer than to see that it is as it was.
        is_agreed = agreed is not None and _is_like(message, agreed)
        new = agreed if is_agreed else signature(message)
        if self._wire is None:
            buffers = [
                transport.memory.outgoing(spec.in_memory(array))
                for (array, _), spec in zip(message, new)
                if array is not None
            ]
        else:
            arrays, new = narrowed(message, new, self._wire)
            buffers = [*map(transport.memory.outgoing, arrays)]
            is_agreed = new == agreed
        pieces = list(_pieces(buffers))
        transport.note_sizes(pieces)
        if is_agreed or new == agreed:
            requests = [self._isend(piece, self._data_tag) for piece in pieces]
        else:
            self._agreed[microbatch] = new, len(pieces)
            text = np.frombuffer(pickle.dumps(new), dtype=np.uint8)
            requests = [self._isend(text[:0], self._data_tag) for _ in range(n_pieces)]
            requests.append(self._isend(text, self._signature_tag))
            requests += [self._isend(piece, self._new_tag) for piece in pieces]
        # A request keeps its buffer alive, and so the array.
        transport.keep(self._peer, requests)

    def _isend(self, piece: np.ndarray, tag: int) -> MPI.Request:
        return self._comm.Isend([piece, MPI.BYTE], self._peer, tag)


class Receiver(_Channel):
    """The receiving end of a channel."""

    def __init__(self, transport: Transport, channel: int, peer: int) -> None:
        super().__init__(transport, channel, peer)
        self._agreed: dict[int, Signature] = {}
        self._posted: deque[tuple[int, _ReceiveBuffer | None]] = deque()
        self._buffers: dict[Signature, list[_ReceiveBuffer]] = {}

    def post(self, microbatch: int) -> None:
        """Starts to receive the channel's next message, if its shape is known."""
        buffer = None
        if microbatch in self._agreed:
            buffer = self._free_buffer(self._agreed[microbatch])
            buffer.is_posted = True
            MPI.Prequest.Startall(buffer.requests)
        self._posted.append((microbatch, buffer))

    def receive(self, microbatch: int, waiting: str) -> tuple[Tensor, ...]:
        """Returns the channel's next message, which must have been posted.

        Args:
            microbatch (int): The microbatch of the message.
            waiting (str): The action that needs the message, for error messages.

        Raises:
            StallError: If the message does not come within the timeout.
        """
        posted, buffer = self._posted.popleft()
        assert posted == microbatch, (posted, microbatch)
        if buffer is not None:
            statuses = [MPI.Status() for _ in buffer.requests]
            self._wait(lambda: MPI.Request.Testall(buffer.requests, statuses), waiting)
            buffer.is_posted = False
            if statuses[0].Get_count(MPI.BYTE) > 0:
                return buffer.message()
        return self._receive_new(microbatch, waiting)

    def close(self) -> None:
        """Frees the requests of receives. No receive may be under way."""
        self._agreed.clear()
        self._drop_unused_buffers()

    def _receive_new(self, microbatch: int, waiting: str) -> tuple[Tensor, ...]:
        status = MPI.Status()
        found = self._wait(
            lambda: self._comm.Improbe(self._peer, self._signature_tag, status), waiting
        )
        text = bytearray(status.Get_count(MPI.BYTE))
        request = found.Irecv([text, MPI.BYTE])
        self._wait(request.Test, waiting)
        new = self._agreed[microbatch] = pickle.loads(text)
        self._drop_unused_buffers()
        buffer = self._free_buffer(new)
        requests = [
            self._comm.Irecv([piece, MPI.BYTE], self._peer, self._new_tag)
            for piece in _pieces(buffer.arrays)
        ]
        self._wait(lambda: MPI.Request.Testall(requests), waiting)
        return buffer.message()

    def _drop_unused_buffers(self) -> None:
        """Frees the arrays of signatures that no microbatch has any more.

        Otherwise sequences of ever new lengths would fill the memory.
        """
        for unused in set(self._buffers) - set(self._agreed.values()):
            del self._buffers[unused]

    def _wait(self, test: Callable[[], Any], waiting: str) -> Any:
        return wait(
            test,
            self._transport.timeout,
            lambda: f"what rank {self._peer} sends, for {waiting}",
            self._transport.watch,
            self._place,
        )

    def _free_buffer(self, agreed: Signature) -> _ReceiveBuffer:
        buffers = self._buffers.setdefault(agreed, [])
        for buffer in buffers:
            if buffer.is_free():
                self._transport.memory.reuse()
                return buffer
        buffers.append(
            _ReceiveBuffer(agreed, self._transport, self._peer, self._data_tag)
        )
        return buffers[-1]


class _ReceiveBuffer:
    """Arrays that receive messages of one signature, again and again.

    A buffer is free when nothing else refers to its arrays. So the caller need not give
    it back; dropping the arrays is enough.
    """

    def __init__(
        self, agreed: Signature, transport: Transport, peer: int, tag: int
    ) -> None:
        self._signature = agreed
        self._transport = transport
        self.is_posted = False
        self.arrays = [
            transport.memory.allocate(*on_wire(spec))
            for spec in agreed
            if spec.shape is not None
        ]
        pieces = list(_pieces(self.arrays))
        transport.note_sizes(pieces)
        self.requests = [
            transport.comm.Recv_init([piece, MPI.BYTE], peer, tag) for piece in pieces
        ]
        self._references_if_free = self._references()

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        # Python collects arrays, but not requests, which keep a communicator from being
        # freed. A request that is under way stays. When Python ends, the names of this
        # module may be gone already, so ``ends`` is an argument.
        if not ends() and not self.is_posted and not MPI.Is_finalized():
            for request in self.requests:
                request.Free()

    def _references(self) -> list[int]:
        return [sys.getrefcount(array) for array in self.arrays]

    def is_free(self) -> bool:
        return not self.is_posted and self._references() == self._references_if_free

    def message(self) -> tuple[Tensor, ...]:
        """Returns the received message."""
        incoming, arrays = self._transport.memory.incoming, iter(self.arrays)
        tensors = []
        for spec in self._signature:
            array = None
            if spec.shape is not None:
                array = incoming(next(arrays))
                array = decoded(array, spec) if spec.wire else array
                array = spec.received(array) if spec.order else array
            tensors.append(Tensor(array, spec.requires_grad))
        return tuple(tensors)


def _is_like(message: Sequence[Tensor], agreed: Signature) -> bool:
    """Returns whether a message of plain arrays has a signature."""
    if len(message) != len(agreed):
        return False
    for (array, requires_grad), spec in zip(message, agreed):
        if (
            array is None
            or array.shape != spec.shape
            or array.dtype.str != spec.dtype
            or requires_grad != spec.requires_grad
            or spec.order
            or not array.flags.c_contiguous
        ):
            return False
    return True


def _pieces(arrays: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
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
