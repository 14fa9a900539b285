"""Messages among the ranks of a pipeline besides activations and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
from mpi4py import MPI

from divisible.communication.collectives import (
    all_gather,
    as_mpi,
    broadcast,
    broadcast_object,
    clock_offsets,
    wait_for_all,
)
from divisible.communication.communicators import duplicate
from divisible.communication.signatures import Tensor
from divisible.communication.tags import TARGETS_CHANNEL
from divisible.communication.transport import Receiver, Sender, Transport
from pipeline.call_agreement import CallAgreement


class Gathering(NamedTuple):
    """Values of all ranks that are on their way."""

    values: np.ndarray
    request: MPI.Request


def _nothing() -> None:
    """Is what there is to do before a pipeline is closed that has begun nothing."""


class Ranks:
    """The ranks of a pipeline.

    Everything here is to be called on all of them, in the same order. A wait for a rank
    whose script has ended is an error at once, but in :meth:`share`, which waits until
    the timeout.

    Args:
        comm: The user's, of ChainerMN or mpi4py; it is duplicated.
        stage_ranks: For each stage of the pipeline the rank that holds it.
        timeout (float): Seconds a wait may take.
        name (str): Of the pipeline, for the duplicate.

    Attributes:
        comm (mpi4py.MPI.Comm): Of all ranks of the pipeline.
        calls (CallAgreement): Counts the calls.
        first (int): The rank with the first stage, which reads ``x``.
        last (int): The rank with the last stage, which reads ``t``.
        before_close: Called on all ranks before :meth:`close`, while they can agree.
    """

    def __init__(
        self, comm: Any, stage_ranks: Sequence[int], timeout: float, name: str
    ) -> None:
        self.comm = duplicate(as_mpi(comm), timeout, self, name)
        self.calls = CallAgreement(self.comm, timeout, name)
        self.first, self.last = stage_ranks[0], stage_ranks[-1]
        self.timeout = timeout
        self.before_close: Callable[[], None] = _nothing
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None

    @property
    def rank(self) -> int:
        """This rank."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.comm.size

    @property
    def are_closed(self) -> bool:
        """Whether :meth:`close` has been called."""
        return self.comm == MPI.COMM_NULL

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
        with self.calls.made("agree"):
            self.calls.compare(vote)
        return self.calls.vote

    def choose(self, choice: Callable[[], Any]) -> Any:
        """Returns rank 0's choice on every rank, so that no rounding makes it another.

        Args:
            choice: Returns any picklable object; called on rank 0.
        """
        with self.calls.made("agree"):
            self.calls.compare()
            return self.broadcast(choice() if self.rank == 0 else None, 0)

    def tell(self, values: np.ndarray, about: str) -> None:
        """Fills ``values`` on every rank with those of the first stage's rank.

        Args:
            values (numpy.ndarray): A few numbers.
            about (str): What is told, for error messages.
        """
        with self.calls.made(about):
            broadcast(
                self.comm, values, self.first, self.timeout, about, self.calls.check
            )

    def share(self, value: Any) -> Any:
        """Returns the last stage's value on every rank; any picklable object."""
        with self.calls.guarded():
            return self.broadcast(value, self.last)

    def broadcast(self, value: Any, root: int) -> Any:
        """Returns ``root``'s value on every rank, within a call."""
        return broadcast_object(self.comm, value, root, self.timeout)

    def all_gather(self, value: Any, purpose: str) -> list:
        """Returns every rank's value, in rank order, within a call.

        Args:
            value: Any picklable object.
            purpose (str): What the ranks are waited for to do, for error messages.
        """
        return all_gather(self.comm, value, self.timeout, purpose)

    def clock_offset(self) -> float:
        """Returns how far this rank's clock is ahead of rank 0's, in seconds."""
        return clock_offsets(self.comm, self.timeout)[self.rank]

    def gather(self, values: np.ndarray) -> Gathering:
        """Begins to gather an array of equal length from each rank."""
        everyone = np.empty((self.size, *values.shape), values.dtype)
        return Gathering(everyone, self.comm.Iallgather(values, everyone))

    def finish(self, gathering: Gathering) -> np.ndarray:
        """Returns what was gathered, a row for each rank."""
        with self.calls.guarded():
            purpose = "to tell what they measured"
            wait_for_all(
                self.comm, gathering.request, self.timeout, purpose, self.calls.check
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
        transport = Transport(self.comm, self.timeout)
        transport.watch = self.calls.check
        return transport

    def close(self) -> None:
        """Frees the communicator, and what messages need."""
        if self._receiver is not None:
            self._receiver.close()
        self.comm.Free()
