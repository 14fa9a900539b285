"""Notices of ranks that have ended their script.

A rank that waits for such a rank raises an error at once. Each operation that the ranks
of a communicator do together is counted. A rank that ends sends the number of
operations that it has finished::

    rank 0   exchange 1   exchange 2   exchange 3 begins, waits long ... raises an error
    rank 1   exchange 1   exchange 2   ends: "finished 2" -----------------'

Only this package's own communicators carry notices, so a user's receives never match
them. A rank checks for notices only when a wait has taken long.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Callable

import numpy as np
from mpi4py import MPI

from divisible.communication.errors import StallError, in_words
from divisible.communication.flight_record import EVERYBODY
from divisible.communication.leaving import at_end
from divisible.communication.tags import EXIT_TAG
from divisible.communication.wait_queries import WaitPlace, wait_queries

# Seconds in which a rank that has ended its script receives notices of others.
_SECONDS_TO_LISTEN = 10.0
# A rank sends its notices over all communicators within this number of seconds.
_SECONDS_OF_ONE_RANK = 0.5
_ADVICE = "All ranks must make the same calls"


class ExitNotices:
    """The operations of all ranks of a communicator, counted, and the ranks that left.

    Args:
        comm (mpi4py.MPI.Comm): The communicator of the ranks.

    Attributes:
        advice (str): The cure where a rank has left too early, a sentence without its
            full stop.
        words: Function that returns the error message. Its arguments are the rank that
            has left, and how many operations it is behind this rank. ``None`` for the
            general message.
        number (int): Number of operations that this rank has begun. Frequent callers
            increase it directly, which saves a call.
        is_finished (bool): Whether this rank has finished the last operation.
        is_active (bool): Whether this rank is within an operation of all ranks.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.advice = _ADVICE
        self.words: Callable[[int, int], str] | None = None
        self.is_active = False
        self.number, self.is_finished = 0, True
        self._sent: list[MPI.Request] = []
        # The number of finished operations of ranks that have left, by rank.
        self._left: dict[int, int] = {}

    def begin(self) -> None:
        """Begins an operation of all ranks, and counts it."""
        self.number += 1
        self.is_finished, self.is_active = False, True

    def resume(self) -> None:
        """Resumes the operation that was begun last, whether it was finished or not."""
        self.is_finished, self.is_active = False, True

    def finish(self) -> None:
        """Finishes the operation: no rank waits for this one any more."""
        self.is_finished, self.is_active = True, False

    def leave_off(self) -> None:
        """Leaves the operation after an error: others may still wait for this rank."""
        self.is_active = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Counts the code within as an operation, unless it is part of another one."""
        if self.is_active:
            yield
            return
        self.begin()
        try:
            yield
        except BaseException:
            self.leave_off()
            raise
        self.finish()

    def say(self) -> None:
        """Sends all other ranks the notice that this one has ended its script."""
        word = np.array([self.number - (not self.is_finished)])
        self._sent = [
            self.comm.Isend(word, rank, EXIT_TAG)
            for rank in range(self.comm.size)
            if rank != self.comm.rank
        ]

    def hear(self) -> None:
        """Receives notices of ranks that have left."""
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, EXIT_TAG, status):
            word = np.empty(1, dtype=int)
            self.comm.Recv(word, status.source, EXIT_TAG)
            self._left[status.source] = int(word[0])

    def missing(self) -> list[int]:
        """Returns the other ranks that have not left yet, numbered as in the world."""
        others = [
            rank
            for rank in range(self.comm.size)
            if rank != self.comm.rank and rank not in self._left
        ]
        return _in_world(self.comm, others)

    def left(self) -> list[int]:
        """Returns the ranks that have left, numbered as in the world."""
        return _in_world(self.comm, [*self._left])

    def check(self, waiting_for: str) -> None:
        """Checks that no rank has left that is needed in the current operation.

        Args:
            waiting_for (str): Words for the wait, such as ``'rank 1 to send'``.

        Raises:
            StallError: If a rank has left.
        """
        self.hear()
        for rank, n_finished in sorted(self._left.items()):
            # A rank that has finished it may leave before others have.
            if n_finished >= self.number:
                continue
            if self.words is not None:
                raise StallError(self.words(rank, self.number - n_finished))
            titles = wait_queries(self.comm).titles
            raise StallError(
                f"{in_words([rank], titles)} ended its script, but rank"
                f" {self.comm.rank} waits for {waiting_for}. {self.advice}"
            )


# Keys are the communicators' handles in Fortran.
_all: dict[int, ExitNotices] = {}


def exit_notices(comm: MPI.Comm) -> ExitNotices:
    """Returns the counter of one of this package's communicators, until it is freed."""
    handle = comm.py2f()
    if handle not in _all or not _all[handle].comm:
        _all[handle] = ExitNotices(comm)
    return _all[handle]


def together(comm: MPI.Comm) -> contextlib.AbstractContextManager[None]:
    """Counts the operation within, if the communicator is one of this package's own."""
    found = _all.get(comm.py2f())
    return found.together() if found and found.comm else contextlib.nullcontext()


def check_exit_notices(waiting_for: Callable[[], str], place: WaitPlace | None) -> None:
    """Checks that no rank has left that is needed in a current operation.

    Waits call this again and again.

    Args:
        waiting_for: Argument of :func:`~divisible.communication.waiting.wait`.
        place: Place of the wait, or ``None``.

    Raises:
        StallError: If a rank has left.
    """
    for each in list(_all.values()):
        if each.is_active and each.comm:
            is_of_all = place is not None and place.peer == EVERYBODY
            each.check(f"all ranks {waiting_for()}" if is_of_all else waiting_for())


def _in_world(comm: MPI.Comm, ranks: list[int]) -> list[int]:
    world = MPI.COMM_WORLD.Get_group()
    return [*comm.Get_group().Translate_ranks(ranks, world)]


@at_end
def _leave() -> None:
    if not MPI.Is_initialized() or MPI.Is_finalized():
        return
    ours = [each for each in _all.values() if each.comm]
    for each in ours:
        each.say()
    # MPI waits for the others in the end anyway, and warns of messages left over.
    start = time.monotonic()
    heard: dict[int, float] = {}
    while (now := time.monotonic()) < start + _SECONDS_TO_LISTEN:
        for each in ours:
            each.hear()
            for rank in each.left():
                heard.setdefault(rank, now)
        missing = {rank for each in ours for rank in each.missing()}
        # A rank that has freed a communicator sends no notice over it.
        if all(now > heard.get(rank, now) + _SECONDS_OF_ONE_RANK for rank in missing):
            break
        time.sleep(0.001)
