"""Channels whose sender puts messages into the receiver's memory.

On one host a message is copied once, from where it lies to where it is used::

    receiver                            sender
    credit: slot 2 has room for it -->  as soon as there is a message:
    waits                               puts its arrays into slot 2
    uses the arrays where they are <--  note: it is there

The receiver tells the address of its memory once, before the first message, and credits
with each receive that is posted. A message without a credit waits at the sender, which
goes on with it whenever it sends, waits, or polls between the layers. Three kinds of
messages travel as :mod:`divisible.communication.transport` sends them: to other hosts;
in channels whose shapes are not static; and when all slots are in use, or a message is
larger than a slot.
"""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

from divisible.communication.collectives import all_gather
from divisible.communication.receive_buffers import (
    ReceivedArrays,
    beginning,
    pieces_of,
)
from divisible.communication.shared_memory import Address, SharedMemory
from divisible.communication.signatures import Signature, Tensor
from divisible.communication.tags import UNUSED_TAG
from divisible.communication.transport import Receiver, Sender, Transport
from divisible.communication.wait_queries import WaitPlace
from divisible.communication.waiting import wait
from divisible.communication.windows import (
    BY_MPI,
    FULL,
    N_EXPECTED,
    NEW,
    Layout,
    Window,
)
from divisible.free_memory import claims, refusal
from divisible.user_warnings import warn_user

# Processors that write to memory in the order of the program, and 64 bits at once. On
# others the note of a message could be seen before its bytes, or in part.
_ORDERED = ("x86_64", "AMD64")


class OneSidedTransport(Transport):
    """Channels over memory that two ranks share, and over mpi4py.

    Args:
        comm (mpi4py.MPI.Comm): Communicator; see :class:`.Transport`.
        timeout (float): Seconds a wait may take.
    """

    def __init__(self, comm: MPI.Comm, timeout: float) -> None:
        super().__init__(comm, timeout)
        self._senders: dict[int, OneSidedSender] = {}
        self._receivers: dict[int, OneSidedReceiver] = {}
        self.late: dict[OneSidedSender, None] = {}

    def sender(self, channel: int, peer: int) -> OneSidedSender:
        """Returns this rank's end of a channel that leads to rank ``peer``."""
        self._senders[channel] = OneSidedSender(self, channel, peer)
        return self._senders[channel]

    def receiver(self, channel: int, peer: int) -> OneSidedReceiver:
        """Returns this rank's end of a channel that comes from rank ``peer``."""
        self._receivers[channel] = OneSidedReceiver(self, channel, peer)
        return self._receivers[channel]

    def make_room(self, n_slots: int, world: MPI.Comm) -> None:
        """Makes windows for channels with known shapes; all ranks must call it.

        Args:
            n_slots (int): Number of messages of a channel that a rank may hold.
            world (mpi4py.MPI.Comm): Ranks that make windows now, such as those of all
                replicas. Their memory is weighed together.

        Raises:
            StallError: If another rank does not call this in time.
        """
        layouts, n_bytes = self._lay_out(n_slots)
        memory, purpose = None, "to weigh their memory"
        needs = all_gather(world, claims(n_bytes), self.timeout, purpose)
        reason = refusal(needs)
        if reason is None:
            memory, reason = _made(n_bytes)
        if n_bytes and memory is None:
            layouts = {}
            warn_user(
                f"transport='rma': rank {self.comm.rank} receives messages by MPI,"
                f" because it has no memory to put them into: {reason}"
            )
        address = None if memory is None else memory.address
        purpose = "to tell where their memory is"
        said = all_gather(self.comm, (address, layouts), self.timeout, purpose)
        opened = self._open(said)
        purpose = "to open the memory of others"
        reached = set().union(*all_gather(self.comm, opened, self.timeout, purpose))
        for channel, layout in layouts.items():
            if channel in reached:
                self._receivers[channel].use(memory.content, layout)
        if memory is not None:
            memory.close()

    def _lay_out(self, n_slots: int) -> tuple[dict[int, Layout], int]:
        """Returns the places of windows for this rank's receivers, and their bytes."""
        layouts, end = {}, 0
        for channel, receiver in self._receivers.items():
            if receiver.expected is not None:
                layouts[channel] = Layout(end, n_slots)
                end = layouts[channel].end(receiver.expected)
        return layouts, end

    def _open(
        self, said: Sequence[tuple[Address | None, Mapping[int, Layout]]]
    ) -> list[int]:
        """Opens the windows of other ranks; returns the channels that have one."""
        opened = []
        for rank, (address, layouts) in enumerate(said):
            mine = {
                channel: layout
                for channel, layout in layouts.items()
                if channel in self._senders and self._senders[channel].peer == rank
            }
            if not mine:
                continue
            try:
                with SharedMemory.open(address) as memory:
                    for channel, layout in mine.items():
                        self._senders[channel].use(memory.content, layout)
                        opened.append(channel)
            except OSError:
                # The rank is on another host, or its processes are not visible.
                continue
        return opened

    def go_on(self) -> None:
        """Puts messages that have waited for a credit, and lets MPI go on."""
        for sender in [*self.late]:
            if sender.go_on():
                del self.late[sender]
        if self._sent:
            self.comm.Iprobe(MPI.ANY_SOURCE, UNUSED_TAG)

    def look(self) -> None:
        """Goes on with messages; to be called often."""
        if self.late:
            self.go_on()
        super().look()

    def flush(self, peers: Container[int] | None = None) -> None:
        """Waits until everything sent has left; see :meth:`.Transport.flush`."""

        def is_gone(sender: OneSidedSender) -> bool:
            self.go_on()
            return sender not in self.late

        for sender in [*self.late]:
            if peers is None or sender.peer in peers:
                wait(
                    lambda sender=sender: is_gone(sender),
                    self.timeout,
                    lambda sender=sender: (
                        f"rank {sender.peer} to take what was sent to it"
                    ),
                    self.watch,
                    WaitPlace(self.comm, sender.peer),
                )
        super().flush(peers)


def _made(n_bytes: int) -> tuple[SharedMemory | None, str]:
    """Returns memory, or the reason why there is none.

    Args:
        n_bytes (int): Bytes of the memory; 0 for none.
    """
    if not n_bytes:
        return None, ""
    if platform.machine() not in _ORDERED:
        return None, f"{platform.machine()} may write in another order, or in parts"
    try:
        return SharedMemory.make(n_bytes), ""
    except OSError as error:
        return None, str(error)


class OneSidedSender(Sender):
    """The sending end of a channel."""

    _transport: OneSidedTransport
    _window: Window | None = None

    def __init__(self, transport: OneSidedTransport, channel: int, peer: int) -> None:
        super().__init__(transport, channel, peer)
        self.peer, self._n_sent = peer, 0
        self._waiting: deque[tuple[int, Signature, list[Any]]] = deque()

    def use(self, content: memoryview, layout: Layout) -> None:
        """Puts messages into a window from now on."""
        self._window = Window(content, layout, self.expected)
        self._n_sent = 0

    def send(self, microbatch: int, message: Sequence[Tensor]) -> None:
        """Starts to send a message; see :meth:`.Sender.send`."""
        if self._window is None:
            super().send(microbatch, message)
            return
        # A message that waits may change what is agreed.
        agreed = None if self._waiting else self._agreed.get(microbatch)
        self._waiting.append((microbatch, *self._described(message, agreed)))
        if not self.go_on():
            self._transport.late[self] = None

    def go_on(self) -> bool:
        """Sends messages that have credits; returns whether none is left."""
        while self._waiting:
            slot = self._window.credits.read(self._n_sent)
            if slot is None:
                return False
            if slot == BY_MPI:
                self._start(*self._waiting.popleft())
            else:
                self._put(slot, *self._waiting.popleft())
            self._n_sent += 1
        return True

    def _fits(self, new: Signature, agreed: Signature | None) -> bool:
        """Returns whether the receiver needs no description of a message.

        If a larger message was agreed on, one that fits into a slot is described all
        the same. So the receiver has a slot for the next one.
        """
        window = self._window
        is_other = window is not None and agreed not in (None, window.agreed)
        if new and is_other and not self._fits_slot(agreed):
            return not self._fits_slot(new) and super()._fits(new, agreed)
        return super()._fits(new, agreed)

    def _fits_slot(self, specs: Signature) -> bool:
        agreed = self._window.agreed
        return specs == agreed or super()._fits(specs, agreed)

    def _put(
        self, slot: int, microbatch: int, new: Signature, arrays: Sequence[Any]
    ) -> None:
        window = self._window
        note, targets = FULL, window.slots[slot]
        if new != window.agreed:
            note = NEW
            if self._fits(new, window.agreed):
                note = self._last_room[1].holds(new)
                specs = [spec for spec in new if spec.shape is not None]
                targets = [beginning(*pair) for pair in zip(targets, specs)]
        if note == NEW:
            pieces = [*pieces_of([*map(self._transport.memory.outgoing, arrays)])]
            requests = self._start_new(microbatch, new, pieces)
            self._transport.keep(self._peer, requests)
        else:
            for array, target in zip(arrays, targets):
                np.copyto(target, array)
        window.notes.write(self._n_sent, note)

    def close(self) -> None:
        """Frees the window; see :meth:`.Sender.close`."""
        super().close()
        self._window = None


class OneSidedReceiver(Receiver):
    """The receiving end of a channel."""

    _transport: OneSidedTransport
    _window: Window | None = None

    def __init__(self, transport: OneSidedTransport, channel: int, peer: int) -> None:
        super().__init__(transport, channel, peer)
        self._n_received = 0
        self._slots: list[ReceivedArrays] = []

    def use(self, content: memoryview, layout: Layout) -> None:
        """Receives messages in a window from now on."""
        window = self._window = Window(content, layout, self.expected)
        self._n_received = 0
        memory = self._transport.memory
        room = self._room_of_slots = self._room(window.agreed)
        self._slots = [
            ReceivedArrays(window.agreed, arrays, room, memory)
            for arrays in window.slots
        ]

    def post(self, microbatch: int) -> None:
        """Gives a credit for the channel's next message."""
        if self._window is None:
            super().post(microbatch)
            return
        number = BY_MPI
        if self._fits_slot(self._agreed.get(microbatch)):
            number = next(
                (i for i, slot in enumerate(self._slots) if slot.is_free()), BY_MPI
            )
        message = self._n_received + len(self._posted)
        assert len(self._posted) < N_EXPECTED, "too many messages are expected"
        if number == BY_MPI:
            super().post(microbatch)
        else:
            self._slots[number].is_posted = True
            self._posted.append((microbatch, self._slots[number]))
        self._window.credits.write(message, number)

    def _fits_slot(self, agreed: Signature | None) -> bool:
        if agreed is None:
            return False
        is_full = agreed == self._window.agreed
        return is_full or self._room_of_slots.holds(agreed) is not None

    def _is_in_slot(self) -> bool:
        return type(self._posted[0][1]) is ReceivedArrays

    def receive(self, microbatch: int, waiting: str) -> tuple[Tensor, ...]:
        """Returns the channel's next message; see :meth:`.Receiver.receive`."""
        if not self._is_in_slot():
            message = super().receive(microbatch, waiting)
            self._n_received += 1
            return message
        notes, number = self._window.notes, self._n_received
        self._wait(lambda: notes.read(number) is not None, waiting)
        note = notes.read(number)
        posted, slot = self._posted.popleft()
        assert posted == microbatch, (posted, microbatch)
        slot.is_posted = False
        self._n_received += 1
        if note == NEW:
            return self._receive_new(microbatch, waiting)
        return slot.message(None if note == FULL else note)

    def close(self) -> None:
        """Frees requests, and the window; see :meth:`.Receiver.close`."""
        super().close()
        self._window, self._slots = None, []

    def _wait(self, test: Callable[[], Any], waiting: str) -> Any:
        def go_on() -> Any:
            self._transport.go_on()
            return test()

        return super()._wait(go_on, waiting)
