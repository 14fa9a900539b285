"""Messages between ranks; each wait has a timeout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from divisible.communication.wait_queries import WaitPlace
from divisible.communication.waiting import wait


class Kind(NamedTuple):
    """A kind of message; between two ranks, messages of a kind keep their order.

    Attributes:
        tag: Tag of the kind.
        what: Content of the messages, for errors.
    """

    tag: int
    what: str


#: An announcement that outputs follow; and the outputs.
READY, OUTPUTS = Kind(0, "its announcement of outputs"), Kind(1, "outputs")
#: Gradients of some hidden units from one column, and summed over all columns.
PART, TOTAL = Kind(2, "gradients"), Kind(3, "sums of gradients")
#: The loss; hidden units that move; outputs for ranks of other columns.
LOSS, UNITS, RESULTS = Kind(4, "the loss"), Kind(5, "hidden units"), Kind(6, "results")


class Pending(NamedTuple):
    """A message under way.

    Attributes:
        request: Request of MPI.
        peer: The rank at the other end.
        what: The action of the peer that this rank waits for.
        array: Array of the message.
    """

    request: MPI.Request
    peer: int
    what: str
    array: np.ndarray


class Messages:
    """The messages of a rank.

    Args:
        comm: Communicator for these messages alone.
        timeout: Seconds that a wait may take.

    Attributes:
        sent_bytes: Bytes that this rank has sent so far, without announcements of
            outputs.
    """

    def __init__(self, comm: MPI.Comm, timeout: float) -> None:
        self._comm, self._timeout = comm, timeout
        self.sent_bytes = 0

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self._comm.rank

    def receive(self, source: int, array: np.ndarray, kind: Kind) -> Pending:
        """Starts to receive a message.

        Args:
            source: The sender.
            array: Contiguous array to fill.
            kind: Kind of the message.
        """
        request = self._comm.Irecv([_bytes(array), MPI.BYTE], source, kind.tag)
        return Pending(request, source, f"rank {source} to send {kind.what}", array)

    def send(self, target: int, array: np.ndarray, kind: Kind) -> Pending:
        """Starts to send a message; see :meth:`receive`."""
        if kind != READY:
            self.sent_bytes += array.nbytes
        request = self._comm.Isend([_bytes(array), MPI.BYTE], target, kind.tag)
        return Pending(request, target, f"rank {target} to take {kind.what}", array)

    def wait(self, pending: Sequence[Pending]) -> None:
        """Waits for messages.

        Raises:
            StallError: If a message does not arrive in time.
        """
        for request, peer, what, _ in pending:
            place = WaitPlace(self._comm, peer)
            wait(request.Test, self._timeout, lambda what=what: what, place=place)


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
