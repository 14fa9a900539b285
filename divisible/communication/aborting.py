"""One way out for all ranks."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import time
from typing import Any, Callable

from mpi4py import MPI

from divisible.communication.errors import StallError

# How long an abort may take.
_ABORT_SECONDS = 3
# How long a rank that fails gives a lower one to say the same before it does.
_SECONDS_TO_WAIT_FOR_LOWER_RANKS = 1.0


def abort(code: int = 1) -> None:
    """Ends all ranks; at any rate this one.

    Args:
        code (int): The exit code.
    """
    # MPI's abort asks mpiexec to end the ranks, and waits. Behind a link that is cut
    # nobody answers. It holds Python's lock meanwhile, so no thread of Python's own
    # could end this.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    faulthandler.dump_traceback_later(_ABORT_SECONDS, exit=True, file=nowhere)
    MPI.COMM_WORLD.Abort(code)
    os._exit(code)


def let_lower_ranks_speak() -> None:
    """Waits, on other ranks than 0, until lower ones have ended this one, if they do.

    So what goes wrong on every rank alike is said once.
    """
    time.sleep(min(MPI.COMM_WORLD.rank, 2) * _SECONDS_TO_WAIT_FOR_LOWER_RANKS)


def is_world_up() -> bool:
    """Returns whether there are other ranks to end."""
    return MPI.Is_initialized() and not MPI.Is_finalized() and MPI.COMM_WORLD.size > 1


def end_all_ranks(what: str, report: Callable[[], None], code: int = 1) -> None:
    """Says why on this rank, and ends all.

    Args:
        what (str): What this rank does, after its name.
        report: Prints the rest.
        code (int): The exit code.
    """
    world = MPI.COMM_WORLD
    sys.stdout.flush()
    where = f"rank {world.rank} of {world.size} on {socket.gethostname()}"
    sys.stderr.write(f"\n{where} {what} and ends all ranks:\n")
    report()
    sys.stderr.flush()
    # mpiexec drops what it has not read yet when a rank aborts.
    time.sleep(0.5)
    abort(code)


def abort_on_error() -> None:
    """Makes an uncaught exception on one rank end all ranks.

    Without it a rank that fails leaves the others waiting for its messages. The
    traceback is printed with the rank and host it comes from; an error that every
    rank raises alike is printed once. :class:`~pipeline.Pipeline` calls this; call
    it at the top of a script to cover what comes before, or start the script as
    ``python -m pipeline script.py``.

    ``sys.exit`` is no exception in this sense. The other ranks end, with an error, as
    soon as they wait for this one in a later call of a pipeline; under
    ``python -m pipeline`` at once, if the exit code is not 0.

    Example:
        >>> import sys
        >>> from pipeline import abort_on_error
        >>> hook = sys.excepthook
        >>> abort_on_error()
        >>> sys.excepthook = hook
    """
    if MPI.COMM_WORLD.size > 1 and not isinstance(sys.excepthook, _AbortHook):
        sys.excepthook = _AbortHook(sys.excepthook)


class _AbortHook:
    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report

    def __call__(self, kind: type, error: BaseException, trace: Any) -> None:
        # MPI may be finalized already; then there is nobody left to stop.
        if is_world_up():
            # Who waits for a rank in vain says so at once: one that waits for the one
            # that waits has less to say.
            if not isinstance(error, StallError):
                let_lower_ranks_speak()
            end_all_ranks("failed", lambda: self._report(kind, error, trace))
        self._report(kind, error, trace)
