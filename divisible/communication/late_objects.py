"""An object of another rank for which this rank waits only when it reads it.

The rank that has it sends it at once, and goes on. `late_numbers` does the same for
numbers whose count all ranks know; here the count of bytes travels before the bytes.
"""

from __future__ import annotations

import pickle
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

from divisible.communication.late_numbers import Filling, Owner
from divisible.communication.tags import RESULT_TAG


class LateObject:
    """A broadcast of a picklable object that has begun on the rank that has it.

    All ranks must make such objects in the same order, and read each one, in that
    order.

    Args:
        owner: The object in whose call the broadcast has begun.
        comm (mpi4py.MPI.Comm): The communicator of the ranks.
        value: The object to send; read on ``root``.
        root (int): The rank that sends it.
        timeout (float): Seconds that a read may wait.
        watch: Called while a read waits; may raise an error to end the wait.
    """

    def __init__(
        self,
        owner: Owner,
        comm: MPI.Comm,
        value: Any,
        root: int,
        timeout: float,
        watch: Callable[[], None] | None = None,
    ) -> None:
        self._owner, self._comm, self._root = owner, comm, root
        self._timeout, self._watch = timeout, watch
        self._begun: list[tuple[np.ndarray, Filling]] = []
        if comm.rank == root:
            data = np.frombuffer(bytearray(pickle.dumps(value)), np.uint8)
            self._begin(np.array([data.size], np.int64))
            self._begin(data)

    def read(self) -> Any:
        """Returns the object, and waits for it.

        The rank that sends it waits until the other ranks have received it.

        Raises:
            StallError: If another rank does not answer in time, or has ended its
                script.
            RuntimeError: If a call has failed on this rank before.
        """
        with self._owner.awaiting():
            if self._comm.rank != self._root:
                size = self._begin(np.empty(1, np.int64))
                self._finish()
                self._begin(np.empty(int(size[0]), np.uint8))
            self._finish()
        data, _ = self._begun[-1]
        return pickle.loads(data.tobytes())

    def _begin(self, buffer: np.ndarray) -> np.ndarray:
        filling = Filling(self._comm, buffer, self._root, "the result", RESULT_TAG)
        self._begun.append((buffer, filling))
        return buffer

    def _finish(self) -> None:
        for _, filling in self._begun:
            filling.finish(self._timeout, self._watch)
