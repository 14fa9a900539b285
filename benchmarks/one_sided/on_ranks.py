"""Times messages between two ranks, in every way."""

from __future__ import annotations

from typing import Any

import chainermn
import numpy as np
from mpi4py import MPI

from benchmarks.common.perceptron import step_seconds
from benchmarks.common.results import alternate
from divisible.communication.one_sided import OneSidedTransport
from divisible.communication.signatures import Tensor
from divisible.communication.transport import Transport

TIMEOUT = 300.0
#: Seconds between two polls of a rank that waits for a measurement.
PAUSE = 0.002
#: Numbers of samples of the messages from which shapes are found.
SIZES = (2, 3, 5)


def work(job: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Returns for each size and each way the seconds of a message in every round.

    Args:
        job: Sizes of messages in bytes as ``'sizes'``, ``'rounds'``, whether MPI puts
            messages as ``'puts'``, and the bytes that one way sends in a round as
            ``'bytes'``; messages that are larger are sent once.
    """
    comm, found = MPI.COMM_WORLD, {}
    ways: dict[str, Any]
    for size in job["sizes"]:
        repeats = max(1, min(200, int(job["bytes"] / size)))
        ways = {
            "one-sided": Channels(OneSidedTransport(comm.Dup(), TIMEOUT), size),
            "two-sided": Channels(Transport(comm.Dup(), TIMEOUT), size),
            "MPI": Blocking(comm, size),
            "ChainerMN": ChainerMN(comm, size),
        }
        if job["puts"]:
            ways["MPI_Put"] = Put(comm.Dup(), size)

        def seconds(way: Any, repeats: int = repeats) -> float:
            return step_seconds(comm, lambda: way.run(repeats), PAUSE)

        for way in ways.values():
            seconds(way, min(repeats, 3))
        measured = alternate(ways, job["rounds"], seconds)
        found[str(size)] = {
            name: [value / repeats / 2 for value in values]
            for name, values in measured.items()
        }
        if job["puts"]:
            ways["MPI_Put"].close()
    return found


class Channels:
    """Messages over a transport of this project, of shapes that are known before.

    Args:
        transport: The transport, over a communicator of two ranks.
        size: Bytes of a message.
    """

    def __init__(self, transport: Transport, size: int) -> None:
        self._transport, self._is_first = transport, transport.comm.rank == 0
        peer = 1 - transport.comm.rank
        self._sender = transport.sender(transport.comm.rank, peer)
        self._receiver = transport.receiver(peer, peer)
        for microbatch, n in enumerate(SIZES):
            self._receiver.post(microbatch)
            self._sender.send(microbatch, [Tensor(np.ones(n, np.float32))])
            self._receiver.receive(microbatch, "the benchmark")
        transport.flush()
        self._array = np.ones(size // 4, np.float32)
        for end in (self._sender, self._receiver):
            assert not end.find_shapes(SIZES)
            end.expect(1, len(self._array))
        if isinstance(transport, OneSidedTransport):
            transport.make_room(2, transport.comm)

    def run(self, repeats: int) -> None:
        """Sends the array to the other rank and back."""
        for _ in range(repeats):
            self._receiver.post(0)
            if self._is_first:
                self._sender.send(0, (Tensor(self._array),))
            (received,) = self._receiver.receive(0, "the benchmark")
            if not self._is_first:
                self._sender.send(0, (Tensor(received.array),))
            del received
            self._transport.flush()


class Blocking:
    """Messages by blocking calls of MPI, in bytes.

    Args:
        comm: Communicator of two ranks.
        size: Bytes of a message.
    """

    def __init__(self, comm: MPI.Comm, size: int) -> None:
        self._comm, self._peer = comm, 1 - comm.rank
        self._sent, self._received = np.ones(size, "u1"), np.empty(size, "u1")

    def run(self, repeats: int) -> None:
        """Sends the array to the other rank and back."""
        received = [self._received, MPI.BYTE]
        for _ in range(repeats):
            if self._comm.rank == 0:
                self._comm.Send([self._sent, MPI.BYTE], self._peer)
                self._comm.Recv(received, self._peer)
            else:
                self._comm.Recv(received, self._peer)
                self._comm.Send(received, self._peer)


class Put:
    """Messages that MPI puts into a window, each with an empty message behind it.

    Args:
        comm: Communicator of two ranks.
        size: Bytes of a message.
    """

    def __init__(self, comm: MPI.Comm, size: int) -> None:
        self._comm, self._peer = comm, 1 - comm.rank
        self._array, self._nothing = np.ones(size, "u1"), np.empty(0, "u1")
        self._window = MPI.Win.Allocate(size, 1, comm=comm)
        self._window.Lock_all()

    def run(self, repeats: int) -> None:
        """Puts the array to the other rank and back."""
        for _ in range(repeats):
            if self._comm.rank == 0:
                self._put()
            self._comm.Recv([self._nothing, MPI.BYTE], self._peer)
            self._window.Sync()
            if self._comm.rank == 1:
                self._put()

    def _put(self) -> None:
        self._window.Put([self._array, MPI.BYTE], self._peer)
        self._window.Flush(self._peer)
        self._comm.Send([self._nothing, MPI.BYTE], self._peer)

    def close(self) -> None:
        """Frees the window; both ranks call it."""
        self._window.Unlock_all()
        self._window.Free()
        self._comm.Free()


class ChainerMN:
    """Messages by ChainerMN.

    Args:
        comm: Communicator of two ranks.
        size: Bytes of a message.
    """

    def __init__(self, comm: MPI.Comm, size: int) -> None:
        self._comm = chainermn.create_communicator("naive", comm)
        self._peer = 1 - comm.rank
        self._array = np.ones(size // 4, np.float32)

    def run(self, repeats: int) -> None:
        """Sends the array to the other rank and back."""
        for _ in range(repeats):
            if self._comm.rank == 0:
                self._comm.send(self._array, self._peer, 0)
                self._comm.recv(self._peer, 0)
            else:
                self._comm.send(self._comm.recv(self._peer, 0), self._peer, 0)
