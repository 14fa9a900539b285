"""The last words of ranks whose script has ended.

Who waits for such a rank learns at once that it waits in vain.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from divisible.communication.errors import StallError
from divisible.communication.tags import FAREWELL_TAG


class Farewells:
    """The ranks that have left, and how many calls of a pipeline they have finished.

    Args:
        comm (mpi4py.MPI.Comm): Of all ranks of the pipeline, and of its replicas.
        n_replicas (int): How many there are.
    """

    def __init__(self, comm: MPI.Comm, n_replicas: int) -> None:
        self._comm = comm
        self._where = ", in all replicas" if n_replicas > 1 else ""
        self._sent: list[MPI.Request] = []
        # By rank.
        self._finished: dict[int, int] = {}

    def say(self, n_calls: int) -> None:
        """Tells the other ranks that this one makes no more calls.

        Args:
            n_calls (int): How many it has finished.
        """
        if self._comm == MPI.COMM_NULL:
            return
        word = np.array([n_calls])
        self._sent = [
            self._comm.Isend(word, rank, FAREWELL_TAG)
            for rank in range(self._comm.size)
            if rank != self._comm.rank
        ]

    def hear_all(self, deadline: float) -> None:
        """Takes the last words of the other ranks.

        MPI waits for them in the end anyway, and complains of messages left over.

        Args:
            deadline (float): When to give up, on the clock of ``time.monotonic``.
        """
        if self._comm == MPI.COMM_NULL:
            return
        n_others = self._comm.size - 1
        while len(self._finished) < n_others and time.monotonic() < deadline:
            if not self._hear():
                time.sleep(0.001)

    def _hear(self) -> bool:
        status = MPI.Status()
        if not self._comm.Iprobe(MPI.ANY_SOURCE, FAREWELL_TAG, status):
            return False
        word = np.empty(1, dtype=int)
        self._comm.Recv(word, status.source, FAREWELL_TAG)
        self._finished[status.source] = int(word[0])
        return True

    def check(self, number: int, call: str) -> None:
        """Sees that nobody has left who is to take part in a call.

        Args:
            number (int): Of the call.
            call (str): Its name.

        Raises:
            StallError: If a rank has.
        """
        self._hear()
        for rank, n_calls in self._finished.items():
            # Up to its last call it took part; it may leave before others finish that.
            if n_calls < number:
                raise StallError(
                    f"rank {rank} ended its script after call {n_calls} of the"
                    f" pipeline, but rank {self._comm.rank} makes call {number},"
                    f" {call}: all ranks must make the same calls{self._where}"
                )
