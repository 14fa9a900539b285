"""What ranks tell each other to decide on a step together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from divisible.communication.collectives import all_gather, as_mpi, duplicate
from divisible.communication.waiting import wait


class Ranks:
    """The ranks of a communicator.

    Args:
        comm: A ChainerMN communicator or an mpi4py one.
        timeout (float): Seconds to wait for the other ranks.

    Attributes:
        rank (int): This one.

    Raises:
        TypeError: If ``comm`` is something else.
    """

    def __init__(self, comm: Any, timeout: float) -> None:
        self._timeout = timeout
        self._users_comm = as_mpi(comm)
        self.rank = self._users_comm.rank
        # Its duplicate, so that messages cannot mix with the user's.
        self._comm: MPI.Comm | None = None

    def gather(self, paths: Sequence[str]) -> list[Sequence[str]]:
        """Returns the paths that each rank gives, on a communicator of their own.

        Raises:
            StallError: If another rank does not come.
        """
        purpose = "to make their first update"
        before = self._comm
        self._comm = duplicate(self._users_comm, self._timeout, purpose)
        if before is not None:
            # Now, because all ranks are here.
            before.Free()
        return all_gather(self._comm, paths, self._timeout, purpose)

    def largest(self, mine: np.ndarray) -> np.ndarray:
        """Returns the largest entries of all ranks' arrays.

        Raises:
            StallError: If another rank does not come.
        """
        largest = np.empty_like(mine)
        request = self._comm.Iallreduce(mine, largest, MPI.MAX)
        wait(
            request.Test,
            self._timeout,
            lambda: f"all {self._comm.size} ranks to update (rank {self.rank} is here)",
        )
        return largest

    def close(self) -> None:
        """Frees the communicator; a call of all ranks."""
        if self._comm is not None:
            self._comm.Free()
        self._comm = None
