"""Numbers of other ranks for which this rank waits only when it reads them.

Every rank begins to exchange them at the same place among its operations. After that,
each rank reads them when it likes: a read waits for messages, and needs no call of the
other ranks::

    rank 1   ... ends its part, sends ------.
    rank 0   ... begins to receive   goes on '--> reads: no wait
    rank 2   ... begins to receive   reads: waits

Numbers that nobody reads are under way until :func:`read_all`, or until the script
ends, because MPI must not end before its messages. If they cannot be read then, all
ranks end with the error.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Callable, Protocol

import numpy as np
from mpi4py import MPI

from divisible.communication.aborting import end_all_ranks
from divisible.communication.leaving import at_end
from divisible.communication.tags import BROADCAST_TAG
from divisible.communication.wait_queries import WaitPlace
from divisible.communication.waiting import wait


class Owner(Protocol):
    """The object whose calls the ranks make together.

    Attributes:
        has_failed (bool): Whether a call has failed on this rank.
    """

    has_failed: bool

    def awaiting(self) -> AbstractContextManager[None]:
        """Returns a context for a wait for messages of an earlier call."""


class Operation(Protocol):
    """An operation of several ranks that has begun."""

    def test(self) -> bool:
        """Returns whether the operation is complete."""

    def finish(self, timeout: float, watch: Callable[[], None] | None) -> None:
        """Waits until the operation is complete."""


class Filling:
    """A broadcast of a few numbers that has begun.

    MPI's broadcast passes through other ranks: if one of them is stopped, no rank knows
    which. The numbers here are few enough to be sent to each rank directly.

    Args:
        comm (mpi4py.MPI.Comm): The communicator of the ranks.
        buffer (numpy.ndarray): Numbers to send on ``root``; filled on the other ranks.
        root (int): The rank that sends its buffer.
        what (str): A name for the content, for error messages.
        tag (int): Tag of the messages. Broadcasts with one tag must begin in the same
            order on all ranks.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        buffer: np.ndarray,
        root: int,
        what: str,
        tag: int = BROADCAST_TAG,
    ) -> None:
        self._comm, self._what, self._is_root = comm, what, comm.rank == root
        if self._is_root:
            others = [rank for rank in range(comm.size) if rank != root]
            self._requests = {rank: comm.Isend(buffer, rank, tag) for rank in others}
        else:
            self._requests = {root: comm.Irecv(buffer, root, tag)}

    def test(self) -> bool:
        """Returns whether this rank's part of the broadcast is complete."""
        return MPI.Request.Testall(list(self._requests.values()))

    def finish(self, timeout: float, watch: Callable[[], None] | None = None) -> None:
        """Waits until this rank's part of the broadcast is complete.

        Args:
            timeout (float): Seconds to wait for another rank.
            watch: Called while waiting; may raise an error to end the wait.

        Raises:
            StallError: If another rank does not take part in time.
        """
        verb = "take" if self._is_root else "tell"
        for rank, request in self._requests.items():
            words = f"rank {rank} to {verb} {self._what}"
            place = WaitPlace(self._comm, rank)
            wait(request.Test, timeout, lambda words=words: words, watch, place)


class LateNumbers:
    """Numbers that an operation of the ranks fills in.

    Args:
        owner: The object in whose call the operation has begun.
        numbers (numpy.ndarray): The numbers, once the operation is complete.
        operation: The operation.
        timeout (float): Seconds that a read may wait.
        watch: Called while a read waits; may raise an error to end the wait.
    """

    def __init__(
        self,
        owner: Owner,
        numbers: np.ndarray,
        operation: Operation,
        timeout: float,
        watch: Callable[[], None] | None = None,
    ) -> None:
        self.owner, self._numbers = owner, numbers
        self._operation: Operation | None = operation
        self._timeout, self._watch = timeout, watch
        # MPI writes into the numbers, also if nobody refers to them any more.
        under_way[self] = None

    @property
    def have_come(self) -> bool:
        """Whether a read would not wait."""
        return self._operation is None or self._operation.test()

    def read(self) -> np.ndarray:
        """Returns the numbers, and waits for them if they have not come yet.

        Raises:
            StallError: If another rank does not answer in time, or has ended its
                script.
            RuntimeError: If a call has failed on this rank before the numbers came.
        """
        operation = self._operation
        if operation is not None:
            if not operation.test():
                with self.owner.awaiting():
                    operation.finish(self._timeout, self._watch)
            self._operation = None
            # Another thread may have read the numbers meanwhile.
            under_way.pop(self, None)
        return self._numbers


#: Numbers that nobody has read yet, in the order in which their operations began.
under_way: dict[LateNumbers, None] = {}


def read_all(owner: Owner) -> None:
    """Reads all numbers that are under way.

    Args:
        owner: The object in whose calls the operations have begun.

    Raises:
        StallError, RuntimeError: See :meth:`LateNumbers.read`.
    """
    for late in [*under_way]:
        if late.owner is owner:
            late.read()


@at_end
def _read_at_end() -> None:
    """Reads what is under way when the script ends, unless a call has failed."""
    if not MPI.Is_initialized() or MPI.Is_finalized():
        return
    try:
        for late in [*under_way]:
            if not late.owner.has_failed:
                late.read()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n"
        end_all_ranks("failed at its end", lambda: sys.stderr.write(text))
