"""Messages among the ranks of a pipeline besides activations and gradients.

A pipeline on a grid is one of several replicas. Values of a minibatch's samples are
exchanged among the ranks of a replica; decisions and measurements among all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

from divisible.communication.busy import free
from divisible.communication.collectives import (
    Gathering,
    all_gather,
    broadcast,
    broadcast_object,
    clock_offsets,
)
from divisible.communication.communicators import duplicate
from divisible.communication.late_numbers import LateNumbers
from divisible.communication.late_objects import LateObject
from divisible.communication.signatures import Tensor
from divisible.communication.tags import TARGETS_CHANNEL
from divisible.communication.transport import Receiver, Sender, Transport
from divisible.communication.wait_queries import wait_queries
from divisible.schedules.rank_program import RankTimes, Record, Span, measured_timeline
from divisible.schedules.timeline import Timeline
from pipeline.calls.call_agreement import CallAgreement
from pipeline.calls.replicas import (
    replicas_of,
    titles_in_pipeline,
    titles_in_world,
    world_of,
)


class Ranks:
    """The ranks of a pipeline, and all ranks of its grid.

    All ranks must call these methods, in the same order. If the script of a rank has
    ended, a wait for it fails at once; only :meth:`share` waits until the timeout.

    Args:
        comm: The user's communicator, of ChainerMN or mpi4py, or a grid; it is
            duplicated.
        stage_ranks: Rank of each stage of the pipeline.
        timeout (float): Longest wait, in seconds.
        name (str): Name of the pipeline, for the duplicate.

    Attributes:
        comm (mpi4py.MPI.Comm): Communicator of all ranks of the pipeline.
        world (mpi4py.MPI.Comm): Communicator of all ranks of all replicas; without
            replicas the same as ``comm``.
        grid (Grid or None): Grid of the replicas, if there are several.
        replica (int): Number of this rank's replica.
        n_replicas (int): Number of replicas.
        is_chief (bool): Whether this rank prints and writes for all ranks.
        title (str): Name of this rank, for messages.
        calls (CallAgreement): Counts and compares the calls of all ranks.
        rank (int): Number of this rank in its pipeline.
        size (int): Number of ranks in the pipeline.
        first (int): Rank with the first stage, which reads ``x``.
        last (int): Rank with the last stage, which reads ``t``.
        last_ranks (list of int): Rank in ``world`` of each replica's last stage.
        before_close: Functions to call on all ranks before :meth:`close`, while they
            can still agree, by the name of their feature.
        look: Called often while this rank waits for another; ``None`` for nothing.
    """

    def __init__(
        self, comm: Any, stage_ranks: Sequence[int], timeout: float, name: str
    ) -> None:
        self.grid = grid = replicas_of(comm)
        self.world = duplicate(world_of(comm), timeout, self, name)
        self.comm, self.replica, self.n_replicas = self.world, 0, 1
        self.is_chief = self.world.rank == 0
        self.title = f"rank {self.world.rank}"
        self.last_ranks = [stage_ranks[-1]]
        if grid is not None:
            self.replica, self.n_replicas = grid.replica, grid.n_replicas
            its_name = f"{name} replica {self.replica}"
            self.comm = duplicate(grid.pipeline, timeout, self, its_name)
            self.title = f"rank {self.world.rank} (replica {self.replica})"
            self.last_ranks = [
                grid.rank_of(replica, stage_ranks[-1])
                for replica in range(grid.n_replicas)
            ]
            wait_queries(self.world).titles = titles_in_world(grid, stage_ranks)
            wait_queries(self.comm).titles = titles_in_pipeline(grid, stage_ranks)
        self.calls = CallAgreement(
            self.world, timeout, name, self.replica, self.n_replicas
        )
        self.rank, self.size = self.comm.rank, self.comm.size
        self.first, self.last = stage_ranks[0], stage_ranks[-1]
        self.timeout = timeout
        self.before_close: dict[str, Callable[[], None]] = {}
        self.look: Callable[[], None] | None = None
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None

    def watch(self) -> None:
        """Polls for messages and errors while this rank waits.

        Raises:
            DisagreementError: If another rank makes a different call.
            StallError: If the script of a rank has ended, so that it will not take
                part.
        """
        self.calls.check()
        if self.look is not None:
            self.look()

    def in_world(self, rank: int) -> int:
        """Returns the number in ``world`` of a rank of this pipeline."""
        return rank if self.grid is None else self.grid.rank_of(self.replica, rank)

    @property
    def are_closed(self) -> bool:
        """Whether :meth:`close` has been called."""
        return self.world == MPI.COMM_NULL

    def agree(self, vote: int) -> int:
        """Returns the largest of all ranks' votes, the same on every rank.

        Args:
            vote (int): A number, at least 0.

        Raises:
            DisagreementError: If another rank makes a different call.
            StallError: If another rank does not answer in time, or its script has
                ended.
        """
        if self.world.size == 1:
            return vote
        with self.calls.made("agree"):
            self.calls.compare(vote)
        return self.calls.agreed.vote

    def choose(self, choice: Callable[[], Any]) -> Any:
        """Returns rank 0's choice on every rank, so that rounding cannot vary it.

        Args:
            choice: Returns any picklable object; called on rank 0.
        """
        with self.calls.made("agree"):
            self.calls.compare()
            chosen = choice() if self.is_chief else None
            return broadcast_object(self.world, chosen, 0, self.timeout)

    def tell(self, values: np.ndarray, about: str) -> None:
        """Fills ``values`` on a pipeline's ranks with the first stage's values.

        Args:
            values (numpy.ndarray): A few numbers.
            about (str): Name of the values, for error messages.
        """
        with self.calls.made(about):
            broadcast(
                self.comm, values, self.first, self.timeout, about, self.calls.check
            )

    def share(self, value: Any) -> Any:
        """Returns the last stage's picklable value on all ranks of its pipeline."""
        with self.calls.guarded():
            return self.broadcast(value, self.last)

    def late_object(self, value: Any, root: int) -> LateObject:
        """Begins to send ``root``'s picklable value to all ranks of a pipeline."""
        return LateObject(self.calls, self.comm, value, root, self.timeout, self.watch)

    def broadcast(self, value: Any, root: int) -> Any:
        """Returns ``root``'s value on all ranks of a pipeline, within a call."""
        return broadcast_object(self.comm, value, root, self.timeout)

    def of_replica(self, replica: int, value: Any) -> Any:
        """Returns a replica's value on the ranks with the same stages, within a call.

        Args:
            replica (int): Number of the replica, which is one of several.
            value: Any picklable object; only this replica's value is read.
        """
        return broadcast_object(self.grid.data, value, replica, self.timeout)

    def all_gather(self, value: Any, purpose: str) -> list:
        """Returns every rank's value, of all replicas, in rank order, within a call.

        Args:
            value: Any picklable object.
            purpose (str): Action for which the ranks wait, for error messages.
        """
        return all_gather(self.world, value, self.timeout, purpose)

    def timeline(self, record: Record, others: Sequence[Span] = ()) -> Timeline:
        """Returns the measured timeline of a pipeline's ranks.

        Args:
            record: Times of this rank's actions.
            others: Exchanges of gradients on this rank, by the same clock.
        """
        offset = clock_offsets(self.comm, self.timeout)[self.rank]
        after = [span.behind(others) for span in record.after]
        besides = [span.since(offset) for span in (*others, *after)]
        times = np.array(record.times) - offset
        mine = RankTimes(record.program.operations, times, besides)
        said = all_gather(self.comm, mine, self.timeout, "to tell what they did")
        return measured_timeline(f"{record.program.name}, measured", said)

    def gather(
        self, values: np.ndarray, purpose: str = "to tell what they measured"
    ) -> LateNumbers:
        """Begins to gather an array of equal shape from each of all ranks.

        Args:
            values (numpy.ndarray): The array of this rank.
            purpose (str): Action for which a read waits, for error messages.

        Returns:
            LateNumbers: A row for each rank.
        """
        gathering = Gathering(self.world, values, purpose)
        return LateNumbers(
            self.calls, gathering.values, gathering, self.timeout, self.watch
        )

    def send_targets(self, targets: Sequence[Any]) -> None:
        """Starts to send arrays from the first stage's rank to the last one's."""
        if self._sender is None:
            self._sender = self._transport().sender(TARGETS_CHANNEL, self.last)
        self._sender.send(0, [Tensor(array) for array in targets])

    def receive_targets(self) -> tuple:
        """Returns the arrays from the first stage's rank, with their dtypes."""
        if self._receiver is None:
            self._receiver = self._transport().receiver(TARGETS_CHANNEL, self.first)
        self._receiver.post(0)
        message = self._receiver.receive(0, "the loss")
        return tuple(array for array, *_ in message)

    def _transport(self) -> Transport:
        # Host memory at either end, and the arrays' own dtypes in messages.
        transport = Transport(self.comm, self.timeout)
        transport.watch = self.calls.check
        return transport

    def close(self) -> None:
        """Frees the communicators and the buffers of messages."""
        if self._receiver is not None:
            self._receiver.close()
        if self.n_replicas > 1:
            free(self.comm)
        free(self.world)
