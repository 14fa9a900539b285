"""Which ranks are missing where all should come.

A collective operation does not say for whom it waits. So who has waited in vain asks
the others, and those that wait at the same place answer::

    rank 0   waits ........ asks all ------ hears rank 2 ---> "rank 1 to start"
    rank 1   reads a file ......................
    rank 2   waits ........ answers
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from divisible.communication.tags import ANSWER_TAG, ROLL_CALL_TAG

# How long the others have for an answer.
_SECONDS_TO_ANSWER = 0.5


class RollCall:
    """Knows who is missing; to be made where a wait of all ranks begins.

    Args:
        comm (mpi4py.MPI.Comm): Of the ranks.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self._sent: list[MPI.Request] = []

    def answer(self) -> None:
        """Tells ranks that ask that this one is here; to be called while it waits."""
        while (rank := self._hear(ROLL_CALL_TAG)) is not None:
            self._tell(rank, ANSWER_TAG)

    def missing(self, purpose: str) -> str:
        """Returns who is waited for, for an error message.

        Args:
            purpose (str): What for, such as ``'to start'``.
        """
        absent = set(range(self._comm.size)) - {self._comm.rank}
        for rank in absent:
            self._tell(rank, ROLL_CALL_TAG)
        deadline = time.monotonic() + _SECONDS_TO_ANSWER
        while absent and time.monotonic() < deadline:
            self.answer()
            while (rank := self._hear(ANSWER_TAG)) is not None:
                absent.discard(rank)
            time.sleep(0.001)
        here = sorted(set(range(self._comm.size)) - absent)
        whom = _names(sorted(absent)) if absent else f"all {self._comm.size} ranks"
        verb = "is" if len(here) == 1 else "are"
        return f"{whom} {purpose} ({_names(here)} {verb} here)"

    def _tell(self, rank: int, tag: int) -> None:
        self._sent.append(self._comm.Isend(np.empty(0, np.uint8), rank, tag))

    def _hear(self, tag: int) -> int | None:
        status = MPI.Status()
        if not self._comm.Iprobe(MPI.ANY_SOURCE, tag, status):
            return None
        self._comm.Recv(np.empty(0, np.uint8), status.source, tag)
        return status.source


def _names(ranks: list[int]) -> str:
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
