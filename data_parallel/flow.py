"""Generators that wait for messages, several at once.

::

    waiting   unit 7   unit 8   ...       in order
    begun     unit 4 -- rank 2 to send    each goes on when its messages are there
              unit 5 -- rank 1 to send
              unit 6 -- rank 1 to take
"""

from __future__ import annotations

from collections import deque
from typing import Callable

from mpi4py import MPI

from data_parallel.messages import Pending, Steps
from divisible.communication.tags import UNUSED_TAG
from divisible.communication.wait_queries import WaitPlace
from divisible.communication.waiting import wait
from divisible.communication.wire import WINDOW


class Flow:
    """Generators that are running.

    Args:
        comm: Communicator of their messages.
        timeout: Seconds that a wait may take.
    """

    def __init__(self, comm: MPI.Comm, timeout: float) -> None:
        self._comm, self._timeout = comm, timeout
        self._waiting: deque[Callable[[], Steps]] = deque()
        self._begun: list[tuple[Steps, list[Pending]]] = []

    @property
    def is_over(self) -> bool:
        """Whether all generators have ended."""
        return not (self._waiting or self._begun)

    def add(self, make: Callable[[], Steps]) -> None:
        """Adds a function that makes a generator when its turn comes."""
        self._waiting.append(make)

    def look(self) -> bool:
        """Resumes generators whose messages are there; returns whether one went on."""
        went_on = False
        still: list[tuple[Steps, list[Pending]]] = []
        for steps, pending in self._begun:
            moved, left = self._go_on(steps, pending)
            went_on |= moved
            if left is not None:
                still.append((steps, left))
        self._begun = still
        while self._waiting and len(self._begun) < WINDOW:
            steps = self._waiting.popleft()()
            _, left = self._go_on(steps, [])
            went_on = True
            if left is not None:
                self._begun.append((steps, left))
        if not (went_on or self._begun):
            # A message of this rank may still be under way after MPI has copied it. No
            # message has this tag: the call alone makes MPI continue.
            self._comm.Iprobe(MPI.ANY_SOURCE, UNUSED_TAG)
        return went_on

    def finish(self) -> None:
        """Waits until all generators have ended.

        Raises:
            StallError: If another rank does not take part in time.
        """
        while not self.is_over:
            if self.look():
                continue
            first = self._first_missing()
            wait(
                self._look_or_end,
                self._timeout,
                lambda first=first: first.what,
                place=WaitPlace(self._comm, first.peer),
            )

    def _look_or_end(self) -> bool:
        return self.look() or self.is_over

    def _first_missing(self) -> Pending:
        """Returns the message for which the first generator waits."""
        _, pending = self._begun[0]
        return next((p for p in pending if not p.request.Test()), pending[0])

    @staticmethod
    def _go_on(
        steps: Steps, pending: list[Pending]
    ) -> tuple[bool, list[Pending] | None]:
        """Returns whether a generator went on, and its messages; None at its end."""
        moved = False
        while not pending or MPI.Request.Testall([p.request for p in pending]):
            moved = True
            try:
                pending = next(steps)
            except StopIteration:
                return True, None
        return moved, pending
