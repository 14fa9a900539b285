"""The last words of ranks whose script has ended.

A rank that waits for such a rank raises an error at once. Each operation that the ranks
of a communicator do together is counted, and a rank that ends sends the number that it
has finished::

    rank 0   exchange 1   exchange 2   exchange 3 begins, waits long ... is told
    rank 1   exchange 1   exchange 2   ends: "finished 2" ------------------'

Only communicators of our own carry such words: a user's messages cannot take them.
Nobody listens before a wait has taken long.
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
from divisible.communication.roll_call import Place, roll_call
from divisible.communication.tags import FAREWELL_TAG

# How long a rank that has ended its script listens for the others to end theirs.
_SECONDS_TO_LISTEN = 10.0
# A rank speaks over all communicators at once. Seconds between its first and last word.
_SECONDS_OF_ONE_RANK = 0.5
_ADVICE = "All ranks must make the same calls"


class Farewells:
    """The operations of all ranks of a communicator, counted, and the ranks that left.

    Args:
        comm (mpi4py.MPI.Comm): The communicator of the ranks.

    Attributes:
        advice (str): Cure where a rank has left too early, a sentence without its full
            stop.
        words: Returns the error message for a rank that has left, and how much less it
            has finished than this one has begun; ``None`` for words that fit all.
        number (int): How many operations this rank has begun. Whoever counts them often
            does so here, without a call.
        is_finished (bool): Whether it has finished the last one.
        is_active (bool): Whether this rank is within something that all do together.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.advice = _ADVICE
        self.words: Callable[[int, int], str] | None = None
        self.is_active = False
        self.number, self.is_finished = 0, True
        self._sent: list[MPI.Request] = []
        # The number of finished operations, by rank.
        self._left: dict[int, int] = {}

    def begin(self) -> None:
        """Counts what begins now, and what all ranks take part in."""
        self.number += 1
        self.is_finished, self.is_active = False, True

    def resume(self) -> None:
        """Goes on with what was begun last, whether it was finished or not."""
        self.is_finished, self.is_active = False, True

    def finish(self) -> None:
        """Ends it: nobody waits for this rank any more."""
        self.is_finished, self.is_active = True, False

    def leave_off(self) -> None:
        """Ends it in the middle, with an error: others may wait for this rank."""
        self.is_active = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Counts what runs within, unless it is a part of something that is counted."""
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
        """Tells the other ranks that this one does nothing with them any more."""
        word = np.array([self.number - (not self.is_finished)])
        self._sent = [
            self.comm.Isend(word, rank, FAREWELL_TAG)
            for rank in range(self.comm.size)
            if rank != self.comm.rank
        ]

    def hear(self) -> None:
        """Takes the words of ranks that have left."""
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, FAREWELL_TAG, status):
            word = np.empty(1, dtype=int)
            self.comm.Recv(word, status.source, FAREWELL_TAG)
            self._left[status.source] = int(word[0])

    def missing(self) -> list[int]:
        """Returns the other ranks that have not left yet, by their world's numbers."""
        others = [
            rank
            for rank in range(self.comm.size)
            if rank != self.comm.rank and rank not in self._left
        ]
        return _in_world(self.comm, others)

    def left(self) -> list[int]:
        """Returns the ranks that have left, by their world's numbers."""
        return _in_world(self.comm, [*self._left])

    def check(self, waiting_for: str) -> None:
        """Checks that nobody has left who is to take part in what this rank is within.

        Args:
            waiting_for (str): Words for the wait, such as ``'rank 1 to send'``.

        Raises:
            StallError: If a rank has.
        """
        self.hear()
        for rank, n_finished in sorted(self._left.items()):
            # A rank that has finished it may leave before others have.
            if n_finished >= self.number:
                continue
            if self.words is not None:
                raise StallError(self.words(rank, self.number - n_finished))
            titles = roll_call(self.comm).titles
            raise StallError(
                f"{in_words([rank], titles)} ended its script, but rank"
                f" {self.comm.rank} waits for {waiting_for}. {self.advice}"
            )


# Keys are the communicators' handles in Fortran.
_all: dict[int, Farewells] = {}


def farewells(comm: MPI.Comm) -> Farewells:
    """Returns those of a communicator of our own, until it is freed."""
    handle = comm.py2f()
    if handle not in _all or not _all[handle].comm:
        _all[handle] = Farewells(comm)
    return _all[handle]


def together(comm: MPI.Comm) -> contextlib.AbstractContextManager[None]:
    """Counts what all ranks of a communicator do within, if it is one of our own."""
    found = _all.get(comm.py2f())
    return found.together() if found and found.comm else contextlib.nullcontext()


def check_farewells(waiting_for: Callable[[], str], place: Place | None) -> None:
    """Checks that nobody has left who is to take part in what this rank is within.

    To be called while this rank waits.

    Args:
        waiting_for: Argument of :func:`~divisible.communication.waiting.wait`.
        place: Place of the wait, or ``None``.

    Raises:
        StallError: If a rank has.
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
    # MPI waits for the others in the end anyway, and complains of messages left over.
    start = time.monotonic()
    heard: dict[int, float] = {}
    while (now := time.monotonic()) < start + _SECONDS_TO_LISTEN:
        for each in ours:
            each.hear()
            for rank in each.left():
                heard.setdefault(rank, now)
        missing = {rank for each in ours for rank in each.missing()}
        # A rank that has freed a communicator says nothing over it.
        if all(now > heard.get(rank, now) + _SECONDS_OF_ONE_RANK for rank in missing):
            break
        time.sleep(0.001)
