"""Ranks that wait for functions to call, so that many tests share a start of MPI."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from multiprocessing import connection
from pathlib import Path
from typing import Callable, NamedTuple

from tests.support.loaded_python import loaded_project
from tests.support.processes import LOAD, Running, launcher, running
from tests.support.waiting_rank import INTERRUPT, Case

#: Ranks that are started together. A case may need fewer: the others sleep meanwhile.
SIZE = 4
#: After so many cases come new ranks: not every case frees its communicators, of which
#: MPICH has some 2,000.
MAX_CASES = 300
# In seconds of an idle machine.
_START_UP = 60
#: How long the others may take to fail as well, when one rank has failed, and to end
#: what they do when they are told to.
_SECONDS_TO_FAIL, _SECONDS_TO_END = 0.5, 5


class Result(NamedTuple):
    """What came of a case."""

    #: 'done', 'failed' or 'interrupted' for each rank that could say so.
    outcomes: list[str]
    #: What they printed, one rank after the other.
    output: str


class Ranks:
    """MPI ranks that call one function after another.

    ::

        test ---Case----> rank 0 ... rank n-1     over a socket each, so that ranks that
             <--outcome--                         wait for the next case sleep
    """

    def __init__(self) -> None:
        self._resources = contextlib.ExitStack()
        self._n_cases = 0
        self._spin = False
        self._ranks: list[connection.Connection] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        keep = self._resources.enter_context
        self._folder = Path(keep(tempfile.TemporaryDirectory()))
        address = str(self._folder / "ranks")
        listener = keep(socket.socket(socket.AF_UNIX))
        listener.bind(address)
        listener.listen(SIZE)
        worker = [*loaded_project(), "-m", "tests.support.waiting_rank", address]
        #: The program that they are.
        self.program = program = keep(running([launcher(), "-n", str(SIZE), *worker]))
        ranks: dict[int, connection.Connection] = {}
        for _ in range(SIZE):
            program.wait_for(lambda: _comes_or_ends(listener, program), _START_UP)
            assert program.process.poll() is None, program.output
            rank = keep(connection.Connection(listener.accept()[0].detach()))
            ranks[rank.recv()] = rank
        self._ranks = [ranks[number] for number in range(SIZE)]

    @property
    def are_worn(self) -> bool:
        """Whether others should take their place.

        So they should after a case that has left a thread in a call of MPI, which waits
        for a rank that does not come: it takes a core from all later tests.
        """
        is_old = self._n_cases >= MAX_CASES
        return not self._ranks or is_old or self._spin

    def call(self, n: int, function: Callable, args: tuple, timeout: float) -> Result:
        """Calls ``function(comm, *args)`` on ``n`` ranks.

        When it fails on one rank, the others have half a second to fail as well before
        they are interrupted. Ranks that end neither so nor in time are killed.

        Args:
            n: At most `SIZE`.
            function: One of a module, by whose name the ranks find it.
            args: Go to the ranks by pickle.
            timeout: Seconds in which it must end, on an idle machine.

        """
        self._n_cases += 1
        outputs = [self._folder / f"{self._n_cases}-{rank}.txt" for rank in range(n)]
        name = f"{function.__module__}:{function.__name__}"
        waiting = self._ranks[:n]
        for rank in waiting:
            rank.send(Case(n, name, args, tuple(map(str, outputs))))
        outcomes = self._collect(waiting, time.monotonic() + LOAD * timeout)
        printed = "".join(path.read_text() for path in outputs if path.exists())
        if len(outcomes) < n:
            self.close()
        return Result(outcomes, printed)

    def _collect(
        self, waiting: list[connection.Connection], deadline: float
    ) -> list[str]:
        outcomes: list[str] = []
        is_interrupted = False
        while waiting:
            ready = connection.wait(waiting, max(0, deadline - time.monotonic()))
            if not ready:
                if "failed" not in outcomes or is_interrupted:
                    break
                is_interrupted = True
                deadline = time.monotonic() + LOAD * _SECONDS_TO_END
                for rank in waiting:
                    rank.send(INTERRUPT)
            for rank in ready:
                waiting.remove(rank)
                try:
                    outcome, spins = rank.recv()
                except (EOFError, ConnectionResetError):
                    # It has ended, and so will the others.
                    return outcomes
                self._spin |= spins
                if outcome == "failed" and "failed" not in outcomes:
                    deadline = time.monotonic() + _SECONDS_TO_FAIL
                outcomes.append(outcome)
        return outcomes

    def close(self) -> None:
        """Ends them."""
        self._ranks = []
        self._resources.close()


def _comes_or_ends(listener: socket.socket, program: Running) -> bool:
    has_ended = program.process.poll() is not None
    return bool(connection.wait([listener], 0)) or has_ended


_shared: Ranks | None = None


def shared_ranks() -> Ranks:
    """Returns ranks that wait for a case, started if there are none."""
    global _shared
    if _shared is not None and _shared.are_worn:
        close_shared_ranks()
    if _shared is None:
        _shared = Ranks()
    return _shared


def close_shared_ranks() -> None:
    """Ends the ranks, if there are any."""
    global _shared
    if _shared is not None:
        _shared.close()
        _shared = None
