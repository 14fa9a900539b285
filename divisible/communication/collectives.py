"""Operations of all ranks of a communicator together. Each wait has a limit."""

from __future__ import annotations

import pickle
import time
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

from divisible.communication.exit_notices import together
from divisible.communication.flight_record import EVERYBODY
from divisible.communication.late_numbers import Filling
from divisible.communication.tags import CLOCK_TAG
from divisible.communication.wait_queries import WaitPlace, listening
from divisible.communication.waiting import wait


def as_mpi(comm: Any) -> MPI.Comm:
    """Returns the mpi4py communicator of a ChainerMN or mpi4py communicator.

    Raises:
        TypeError: If ``comm`` is neither.
    """
    mpi_comm = getattr(comm, "mpi_comm", comm)
    if not isinstance(mpi_comm, MPI.Comm):
        raise TypeError(
            f"comm must be a ChainerMN communicator or an mpi4py one, not"
            f" {type(comm).__name__}"
        )
    return mpi_comm


def wait_for_all(
    comm: MPI.Comm,
    request: MPI.Request,
    timeout: float,
    purpose: str,
    watch: Callable[[], None] | None = None,
) -> None:
    """Waits until an operation of all ranks is complete.

    Args:
        comm (mpi4py.MPI.Comm): The communicator of the ranks.
        request (mpi4py.MPI.Request): The operation.
        timeout (float): Seconds to wait for the other ranks.
        purpose (str): The purpose of the operation, such as ``'to save'``, for the
            error message.
        watch: Called while waiting; may raise an error to end the wait.

    Raises:
        StallError: If another rank does not begin the operation in time. The message
            names the ranks that are missing.
    """
    with together(comm), listening(comm):
        wait(request.Test, timeout, lambda: purpose, watch, WaitPlace(comm, EVERYBODY))


def all_gather(
    comm: MPI.Comm,
    value: Any,
    timeout: float,
    purpose: str = "to compare settings",
) -> list:
    """Returns the ``value`` of every rank, in rank order; any picklable object.

    Args:
        comm (mpi4py.MPI.Comm): The communicator of the ranks.
        value: The value of this rank.
        timeout (float): Seconds to wait for the other ranks.
        purpose (str): The purpose of the operation, for the error message.

    Raises:
        StallError: If another rank does not call this in time.
    """
    mine = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
    sizes = np.empty(comm.size, dtype=np.int64)
    request = comm.Iallgather(np.array([mine.size], dtype=np.int64), sizes)
    wait_for_all(comm, request, timeout, purpose)
    everything = np.empty(sizes.sum(), dtype=np.uint8)
    request = comm.Iallgatherv(mine, (everything, sizes))
    wait_for_all(comm, request, timeout, purpose)
    ends = np.cumsum(sizes)
    return [
        pickle.loads(everything[end - size : end].tobytes())
        for size, end in zip(sizes, ends)
    ]


def broadcast(
    comm: MPI.Comm,
    buffer: np.ndarray,
    root: int,
    timeout: float,
    what: str = "the result",
    watch: Callable[[], None] | None = None,
) -> None:
    """Fills ``buffer`` on every rank with the buffer of rank ``root``.

    Args:
        comm (mpi4py.MPI.Comm): The communicator of the ranks.
        buffer (numpy.ndarray): A few numbers.
        root (int): The rank that sends its buffer.
        timeout (float): Seconds to wait for another rank.
        what (str): A name for the content, for the error message.
        watch: Called while waiting; may raise an error to end the wait.

    Raises:
        StallError: If another rank does not call this in time.
    """
    with together(comm):
        fill(comm, buffer, root, timeout, what, watch)


def fill(
    comm: MPI.Comm,
    buffer: np.ndarray,
    root: int,
    timeout: float,
    what: str,
    watch: Callable[[], None] | None = None,
) -> None:
    """Fills ``buffer`` like :func:`broadcast`, within an operation that is counted."""
    Filling(comm, buffer, root, what).finish(timeout, watch)


class Gathering:
    """Arrays of all ranks, of equal shape, that are being gathered on each rank.

    Args:
        comm (mpi4py.MPI.Comm): The communicator of the ranks.
        values (numpy.ndarray): This rank's array.
        purpose (str): The purpose of the operation, such as ``'to save'``, for error
            messages.

    Attributes:
        values (numpy.ndarray): The arrays of all ranks in rank order, when the
            operation is complete.
    """

    def __init__(self, comm: MPI.Comm, values: np.ndarray, purpose: str) -> None:
        self._comm, self._purpose = comm, purpose
        self.values = np.empty((comm.size, *values.shape), values.dtype)
        self._request = comm.Iallgather(values, self.values)

    def test(self) -> bool:
        """Returns whether the operation is complete."""
        return self._request.Test()

    def finish(self, timeout: float, watch: Callable[[], None] | None = None) -> None:
        """Waits until the operation is complete; see :func:`wait_for_all`."""
        wait_for_all(self._comm, self._request, timeout, self._purpose, watch)


def broadcast_object(comm: MPI.Comm, value: Any, root: int, timeout: float) -> Any:
    """Returns a value of one rank on every rank.

    Args:
        comm (mpi4py.MPI.Comm): The communicator of the ranks.
        value: Any picklable object; read on ``root``.
        root (int): The rank that sends its value.
        timeout (float): Seconds to wait for another rank.

    Raises:
        StallError: If another rank does not call this in time.
    """
    data = bytearray(pickle.dumps(value) if comm.rank == root else b"")
    size = np.array([len(data)], dtype=np.int64)
    broadcast(comm, size, root, timeout)
    if comm.rank != root:
        data = bytearray(int(size[0]))
    broadcast(comm, np.frombuffer(data, dtype=np.uint8), root, timeout)
    return pickle.loads(data)


def clock_offsets(comm: MPI.Comm, timeout: float) -> list[float]:
    """Returns by how many seconds the clock of each rank is ahead of rank 0's.

    Ranks on one host share ``time.perf_counter``; each host has its own zero. A rank's
    clock is read halfway through a message to the rank and back. The fastest of several
    exchanges is the least disturbed one.

    Args:
        comm (mpi4py.MPI.Comm): The communicator of the ranks.
        timeout (float): Seconds to wait for another rank.

    Raises:
        StallError: If another rank does not call this in time.
    """
    with together(comm):
        offsets = _clock_offsets(comm, timeout)
        broadcast(comm, offsets, 0, timeout)
    return offsets.tolist()


def _clock_offsets(comm: MPI.Comm, timeout: float) -> np.ndarray:
    """Returns the offsets on rank 0, and zeros on other ranks."""
    n_exchanges = 8
    clock = np.empty(1)

    def wait_for(request: MPI.Request, rank: int, what: str) -> None:
        place = WaitPlace(comm, rank)
        wait(request.Test, timeout, lambda: f"rank {rank} {what}", place=place)

    def receive(source: int) -> float:
        request = comm.Irecv(clock, source, CLOCK_TAG)
        wait_for(request, source, "to tell its clock")
        return clock[0]

    def send(destination: int) -> None:
        request = comm.Isend(np.array([time.perf_counter()]), destination, CLOCK_TAG)
        wait_for(request, destination, "to read its clock")

    offsets = np.zeros(comm.size)
    if comm.rank == 0:
        for rank in range(1, comm.size):
            exchanges = []
            for _ in range(n_exchanges):
                start = time.perf_counter()
                send(rank)
                theirs = receive(rank)
                end = time.perf_counter()
                exchanges.append((end - start, theirs - (start + end) / 2))
            offsets[rank] = min(exchanges)[1]
    else:
        for _ in range(n_exchanges):
            receive(0)
            send(0)
    return offsets
