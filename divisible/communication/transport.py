"""Channels that send tuples of arrays between the ranks of a pipeline.

A *channel* leads from one rank to another, in one direction. It carries one message per
microbatch, in an order both ends know. A message is a tuple of tensors
(:mod:`divisible.communication.signatures`). Both ends remember the last *signature*
(shapes, dtypes and memory orders) of each microbatch of the channel. So in the steady
state only the bytes of the arrays travel, into arrays whose receives were posted
before::

    microbatch's signature    sender                    receiver
    as last time              bytes of each array  -->  posted receives
    of fewer samples          fewer bytes          -->  posted receives
    new, posted receives      empty messages       -->  posted receives, seen empty
                              the signature        -->  reads it, allocates
                              bytes of each array  -->  receives them
    first                     the signature        -->  reads it, allocates
                              bytes of each array  -->  receives them

So a new signature is always sent first. Arrays are never cut off, and shapes never
guessed. Where shapes follow from the number of samples
(:mod:`divisible.communication.static_shapes`), both ends may agree on signatures before
the first message (:meth:`Sender.expect`), and messages of fewer samples need none.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Container, Sequence
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

from divisible.communication import receive_buffers
from divisible.communication.buffers import create_buffers
from divisible.communication.narrowing import narrowed
from divisible.communication.receive_buffers import ReceiveBuffer, n_pieces, pieces_of
from divisible.communication.signatures import Signature, Tensor, is_like, signature
from divisible.communication.static_shapes import (
    NotStaticError,
    Room,
    StaticShapes,
)
from divisible.communication.tags import UNUSED_TAG, channel_tags
from divisible.communication.wait_queries import WaitPlace
from divisible.communication.waiting import wait
from divisible.communication.wire import WIRE, WireDtype

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
        """Returns this rank's end of a channel that leads to another rank.

        Args:
            channel (int): Number of the channel, the same on both ranks.
            peer (int): The rank that receives, by its number in the communicator.
        """
        return Sender(self, channel, peer)

    def receiver(self, channel: int, peer: int) -> Receiver:
        """Returns this rank's end of a channel that comes from rank ``peer``.

        The arguments are those of :meth:`sender`.
        """
        return Receiver(self, channel, peer)

    def note_size(self, most_bytes: int) -> None:
        """Records whether some messages are large."""
        self._has_large = self._has_large or most_bytes >= LARGE_BYTES

    def keep(self, peer: int, requests: list[MPI.Request]) -> None:
        """Keeps sends to rank ``peer``, and their buffers, until they are complete."""
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
    """One end of a channel.

    Attributes:
        shapes (StaticShapes or None): Shapes of its messages for each number of
            samples, if both ends know them.
        expected (Signature or None): The signature that was expected before the first
            message.
    """

    def __init__(self, transport: Transport, channel: int, peer: int) -> None:
        self._transport = transport
        self._comm = transport.comm
        self._peer = peer
        self._place = WaitPlace(transport.comm, peer)
        # Tags of pieces of a known signature, of signatures, of pieces of a new one.
        self._data_tag, self._signature_tag, self._new_tag = channel_tags(channel)
        self.shapes: StaticShapes | None = None
        # The signature of each microbatch.
        self._agreed: dict[int, Signature] = {}
        self.expected: Signature | None = None

    def find_shapes(self, sizes: Sequence[int]) -> str:
        """Finds the shapes of all messages from those of some microbatches.

        Both ends call this, after messages of these microbatches, which they then
        forget.

        Args:
            sizes: Numbers of samples of the microbatches 0, 1 and so on; none if there
                were no such messages.

        Returns:
            The reason if the shapes do not follow from the number of samples; else an
            empty text.
        """
        seen = {n: self._agreed.get(i, ()) for i, n in enumerate(sizes)}
        self.forget()
        try:
            self.shapes = StaticShapes(seen)
        except NotStaticError as error:
            return str(error)
        return ""

    def expect(self, n_microbatches: int, n_samples: int) -> None:
        """Agrees on messages of static shapes before the first one.

        Both ends call this.

        Args:
            n_microbatches (int): Number of microbatches.
            n_samples (int): The most samples of a microbatch.
        """
        if self.shapes is None:
            return
        specs = self.shapes.at(n_samples)
        if all(min(spec.shape or (1,)) >= 0 for spec in specs):
            self.agree(specs, n_microbatches)

    def agree(self, specs: Signature, n_microbatches: int = 1) -> None:
        """Agrees on the signature of messages; both ends call this.

        Args:
            specs: The signature.
            n_microbatches (int): Number of microbatches.
        """
        self.expected = specs
        self._agreed.update(dict.fromkeys(range(n_microbatches), specs))

    def forget(self) -> None:
        """Forgets the signatures that both ends know."""
        self._agreed.clear()

    def close(self) -> None:
        """Frees what the messages needed. None may be under way."""
        self.forget()

    def _room(self, agreed: Signature) -> Room:
        return Room(self.shapes, agreed, receive_buffers.PIECE_BYTES)


class Sender(_Channel):
    """The sending end of a channel."""

    def __init__(self, transport: Transport, channel: int, peer: int) -> None:
        super().__init__(transport, channel, peer)
        self._wire: WireDtype | None = None
        # The place of the last message that was smaller than expected.
        self._last_room: tuple[Signature, Room] | None = None

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
        agreed = self._agreed.get(microbatch)
        self._start(microbatch, *self._described(message, agreed))

    def _start(self, microbatch: int, new: Signature, arrays: Sequence[Any]) -> None:
        """Starts to send described arrays."""
        transport, agreed = self._transport, self._agreed.get(microbatch)
        pieces = list(pieces_of([*map(transport.memory.outgoing, arrays)]))
        transport.note_size(max(piece.size for piece in pieces))
        if new is agreed or new == agreed:
            requests = [self._isend(piece, self._data_tag) for piece in pieces]
        elif self._fits(new, agreed):
            if not new:
                # A single byte, and no bytes of the other arrays.
                pieces += [pieces[0][:0]] * (n_pieces(agreed) - 1)
            requests = [self._isend(piece, self._data_tag) for piece in pieces]
        else:
            n_posted = 0 if agreed is None else n_pieces(agreed)
            nothing = np.empty(0, np.uint8)
            requests = [self._isend(nothing, self._data_tag) for _ in range(n_posted)]
            requests += self._start_new(microbatch, new, pieces)
        # A request keeps its buffer alive, and so the array.
        transport.keep(self._peer, requests)

    def _described(
        self, message: Sequence[Tensor], agreed: Signature | None
    ) -> tuple[Signature, list[Any]]:
        """Returns a message's signature, and its arrays in the order of memory."""
        # To describe a message takes longer than to see that it is as it was.
        is_agreed = agreed is not None and is_like(message, agreed)
        new = agreed if is_agreed else signature(message)
        if self._wire is not None:
            arrays, new = narrowed(message, new, self._wire)
            return new, arrays
        return new, [
            spec.in_memory(array)
            for (array, *_), spec in zip(message, new)
            if array is not None
        ]

    def _start_new(
        self, microbatch: int, new: Signature, pieces: Sequence[np.ndarray]
    ) -> list[MPI.Request]:
        """Starts to send a signature, and the message behind it."""
        self._agreed[microbatch] = new
        text = np.frombuffer(pickle.dumps(new), dtype=np.uint8)
        return [
            self._isend(text, self._signature_tag),
            *(self._isend(piece, self._new_tag) for piece in pieces),
        ]

    def _fits(self, new: Signature, agreed: Signature | None) -> bool:
        """Returns whether the receiver needs no description of a message."""
        if agreed is None or self.shapes is None:
            return False
        if self._last_room is None or self._last_room[0] != agreed:
            self._last_room = agreed, self._room(agreed)
        return self._last_room[1].holds(new) is not None

    def _isend(self, piece: np.ndarray, tag: int) -> MPI.Request:
        return self._comm.Isend([piece, MPI.BYTE], self._peer, tag)


class Receiver(_Channel):
    """The receiving end of a channel."""

    def __init__(self, transport: Transport, channel: int, peer: int) -> None:
        super().__init__(transport, channel, peer)
        self._posted: deque[tuple[int, ReceiveBuffer | None]] = deque()
        self._buffers: dict[Signature, list[ReceiveBuffer]] = {}

    def post(self, microbatch: int) -> None:
        """Starts to receive the channel's next message, if its shape is known."""
        buffer = None
        if microbatch in self._agreed:
            buffer = self._free_buffer(self._agreed[microbatch])
            buffer.post()
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
            self._wait(buffer.is_filled, waiting)
            buffer.is_posted = False
            message = buffer.received()
            if message is not None:
                return message
        return self._receive_new(microbatch, waiting)

    def forget(self) -> None:
        """Forgets the signatures that both ends know, and frees arrays for them."""
        super().forget()
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
            for piece in pieces_of(buffer.arrays)
        ]
        self._wait(lambda: MPI.Request.Testall(requests), waiting)
        return buffer.message()

    def _drop_unused_buffers(self) -> None:
        """Frees the arrays of signatures that no microbatch has any more.

        Otherwise sequences of always new lengths would fill the memory.
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

    def _free_buffer(self, agreed: Signature) -> ReceiveBuffer:
        buffers, memory = self._buffers.setdefault(agreed, []), self._transport.memory
        for buffer in buffers:
            if buffer.is_free():
                memory.reuse()
                return buffer
        buffer = ReceiveBuffer(
            agreed, self._room(agreed), memory, self._comm, self._peer, self._data_tag
        )
        buffers.append(buffer)
        self._transport.note_size(buffer.most_bytes)
        return buffer
