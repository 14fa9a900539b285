"""What the ranks of a pipeline tell each other besides activations and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from divisible.communication.collectives import broadcast_object
from divisible.communication.signatures import Tensor
from divisible.communication.tags import NOTICE_TAG, TARGETS_CHANNEL
from divisible.communication.transport import Receiver, Sender, Transport
from pipeline.call_agreement import CallAgreement


class Gathering(NamedTuple):
    """Values of all ranks that are on their way."""

    values: np.ndarray
    request: MPI.Request


class Ranks:
    """The ranks of a pipeline.

    Everything here is to be called on all of them, in the same order. A wait for a rank
    whose script has ended is an error at once, but in :meth:`share`, which waits until
    the timeout.

    Args:
        comm (mpi4py.MPI.Comm): Of all ranks of the pipeline.
        calls (CallAgreement): Counts the calls.
        first (int): The rank with the first stage, which reads ``x``.
        last (int): The rank with the last stage, which reads ``t``.
        timeout (float): Seconds a wait may take.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        calls: CallAgreement,
        first: int,
        last: int,
        timeout: float,
    ) -> None:
        self._comm = comm
        self._calls = calls
        self._timeout = timeout
        self.first = first
        self.last = last
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None

    @property
    def rank(self) -> int:
        """This rank."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._comm.size

    def agree(self, vote: int) -> int:
        """Returns the largest of all ranks' votes, the same on every rank.

        Args:
            vote (int): At least 0.

        Raises:
            DisagreementError: If another rank does something else with the pipeline.
            StallError: If another rank does not answer in time, or has left.
        """
        if self.size == 1:
            return vote
        with self._calls.made("agree"):
            self._calls.start(vote=vote)
            self._calls.finish()
        return self._calls.vote

    def tell(self, values: np.ndarray, about: str) -> None:
        """Fills ``values`` on every rank with those of the first stage's rank.

        Args:
            values (numpy.ndarray): A few numbers.
            about (str): What is told, for error messages.
        """
        with self._calls.made(about):
            if self.rank == self.first:
                # So few bytes leave at once: this does not wait for the other ranks.
                requests = [
                    self._comm.Isend(values, rank, NOTICE_TAG)
                    for rank in range(self.size)
                    if rank != self.first
                ]
                self._calls.wait(
                    lambda: MPI.Request.Testall(requests),
                    lambda: f"the other ranks to ask for {about}",
                )
                return
            request = self._comm.Irecv(values, self.first, NOTICE_TAG)
            self._calls.wait(request.Test, lambda: f"rank {self.first} to tell {about}")

    def share(self, value: Any) -> Any:
        """Returns the last stage's value on every rank; any picklable object."""
        with self._calls.guarded():
            return broadcast_object(self._comm, value, self.last, self._timeout)

    def gather(self, values: np.ndarray) -> Gathering:
        """Begins to gather an array of equal length from each rank."""
        everyone = np.empty((self.size, *values.shape), values.dtype)
        return Gathering(everyone, self._comm.Iallgather(values, everyone))

    def finish(self, gathering: Gathering) -> np.ndarray:
        """Returns what was gathered, a row for each rank."""
        with self._calls.guarded():
            self._calls.wait(
                gathering.request.Test, lambda: "all ranks to tell what they measured"
            )
        return gathering.values

    def send_targets(self, targets: Sequence[Any]) -> None:
        """Starts to send arrays from the first stage's rank to the last one's."""
        if self._sender is None:
            self._sender = self._transport().sender(TARGETS_CHANNEL, self.last)
        self._sender.send(0, [Tensor(array) for array in targets])

    def receive_targets(self) -> tuple:
        """Returns what the first stage's rank sends, with its own dtypes."""
        if self._receiver is None:
            self._receiver = self._transport().receiver(TARGETS_CHANNEL, self.first)
        self._receiver.post(0)
        message = self._receiver.receive(0, "the loss")
        return tuple(array for array, _ in message)

    def _transport(self) -> Transport:
        # Host memory at either end, and no narrower dtype on the way.
        transport = Transport(self._comm, self._timeout)
        transport.watch = self._calls.check
        return transport

    def close(self) -> None:
        """Frees what the messages need."""
        if self._receiver is not None:
            self._receiver.close()
