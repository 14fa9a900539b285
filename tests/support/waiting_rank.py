"""What runs on each rank of :class:`tests.support.ranks.Ranks`."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import queue
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import chainer
import numpy as np
from mpi4py import MPI

from divisible.communication.busy import free
from tests.support.stops import forget_stops

#: What the test says instead of a case: that the case that runs shall end.
INTERRUPT = None

#: How long a rank that is no longer needed may take to end.
_SECONDS_TO_END = 5

#: After how long to look again whether it can be interrupted.
_SECONDS_TO_WAIT = 0.05

#: Where nothing may be cut short. A package whose import is can never be imported
#: again: its modules are there, but not as its attributes. Numba's iterators over what
#: it knows end for good, and nothing can be compiled after that.
_TO_BE_FINISHED = ("<frozen importlib._bootstrap>", f"{os.sep}numba{os.sep}")


class Case(NamedTuple):
    """A call of ``function(comm, *args)`` on the first ``n`` ranks."""

    n: int
    # As ``module:name``.
    function: str
    args: tuple
    # The files to which the ranks print, one each.
    outputs: tuple[str, ...]


def interrupt() -> None:
    """Ends the case that runs in the main thread."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def is_to_be_finished(frame: FrameType | None) -> bool:
    """Whether a module is being imported, or a loop compiled, where ``frame`` is."""
    while frame is not None:
        if any(place in frame.f_code.co_filename for place in _TO_BE_FINISHED):
            return True
        frame = frame.f_back
    return False


class _Interrupts:
    """Makes what this process is told to end raise KeyboardInterrupt, if it runs."""

    def __init__(self) -> None:
        # How many cases began; None while none runs.
        self._running: int | None = None
        self._n_begun = 0
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._running is None:
            return
        if not is_to_be_finished(frame):
            raise KeyboardInterrupt
        threading.Timer(_SECONDS_TO_WAIT, self._again, [self._running]).start()

    def _again(self, case: int) -> None:
        if self._running == case:
            interrupt()

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        self._n_begun += 1
        self._running = self._n_begun
        try:
            yield
        finally:
            self._running = None


@contextlib.contextmanager
def as_if_alone(seed: int) -> Iterator[None]:
    """Lets what a case sets for its process end with the case."""
    everywhere, here = vars(chainer.global_config), vars(chainer.config._local)
    kept = [(values, dict(values)) for values in (everywhere, here)]
    path = list(sys.path)
    n_modules = len(sys.modules)
    random.seed(seed)
    np.random.seed(seed)
    try:
        with warnings.catch_warnings():
            # A test of what is done in the background would not be one.
            warnings.filterwarnings("error", "snapshots are written at once")
            yield
    finally:
        for values, before in kept:
            values.clear()
            values.update(before)
        sys.path[:] = path
        forget_stops()
        gc.collect()
        if len(sys.modules) > n_modules:
            # Modules stay, and need not be looked at after each of the next cases.
            gc.freeze()


def spins(thread: threading.Thread) -> bool:
    """Whether a thread computes all the time, as in a call of MPI that waits."""
    states = set()
    for _ in range(3):
        # It may have ended.
        with contextlib.suppress(OSError):
            status = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
            states.add(status.rpartition(")")[2].split()[0])
        time.sleep(_SECONDS_TO_WAIT / 2)
    return states == {"R"}


def outcome_of(case: Case, interrupts: _Interrupts) -> str:
    """Calls the function; prints the traceback if it fails.

    Returns:
        'done', 'failed' or 'interrupted'.

    """
    world = MPI.COMM_WORLD
    # Of its own for each case, so that no message of another can be mistaken.
    comm = world.Create_group(world.group.Incl(range(case.n)))
    try:
        with as_if_alone(comm.rank), interrupts.allowed():
            module, name = case.function.split(":")
            function = getattr(importlib.import_module(module), name)
            function(comm, *case.args)
    except KeyboardInterrupt:
        return "interrupted"
    except BaseException:
        print(f"rank {comm.rank} of {comm.size} failed:", file=sys.stderr)
        traceback.print_exc()
        return "failed"
    # Where a wait was to end in vain, the others may still come.
    free(comm)
    return "done"


def print_to(path: str) -> None:
    """Sends both output streams to a new file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def receive(connection: Connection, cases: queue.Queue) -> None:
    """Hands cases on; ends the process when the test run is gone."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            what = connection.recv()
            if what is INTERRUPT:
                interrupt()
            else:
                cases.put(Case(*what))
    cases.put(None)
    # The main thread may be waiting for another rank.
    time.sleep(_SECONDS_TO_END)
    os._exit(1)


def main(address: str) -> None:
    interrupts = _Interrupts()
    connection: Any = Client(address, "AF_UNIX")
    connection.send(MPI.COMM_WORLD.rank)
    cases: queue.Queue = queue.Queue()
    threading.Thread(target=receive, args=(connection, cases), daemon=True).start()
    # What is here by now stays, and need not be looked at when a case's garbage is.
    gc.freeze()
    for case in iter(cases.get, None):
        print_to(case.outputs[MPI.COMM_WORLD.rank])
        threads_before = set(threading.enumerate())
        outcome = outcome_of(case, interrupts)
        sys.stdout.flush()
        sys.stderr.flush()
        left = set(threading.enumerate()) - threads_before
        connection.send((outcome, any(map(spins, left))))


if __name__ == "__main__":
    main(sys.argv[1])
