"""Ends all ranks after an error on one.

Nothing here imports MPI before it must. A rank knows from its launcher whether there
are others, and starts MPI only to end them.

A rank that fails may have no memory, threads or files left. Whatever it needs to report
the error and to end the others is prepared when the hooks are set. Other parts of the
report are left out if they fail.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import types
from typing import Any, Callable, NamedTuple

from divisible.communication import flight_report
from divisible.communication.errors import (
    DisagreementError,
    StallError,
    is_of_mpi,
)
from divisible.communication.flight_record import own_flight_record
from divisible.communication.launchers import is_one_of_several, launch
from divisible.communication.leaving import hear_exits

# Limits for an abort, and for the start of MPI if an abort needs one.
_ABORT_SECONDS = 3
_START_SECONDS = 10
# Limit for reporting the error, including the wait for lower ranks to report theirs.
_SECONDS_TO_SAY = 20
# Time in which a lower rank may report the same error first.
_SECONDS_TO_WAIT_FOR_LOWER_RANKS = 1.0
# Locked by the thread that ends the ranks: failures of other threads follow from it.
_ending = threading.Lock()
# Reserved memory, to be freed at the end. The system provides none before it is used.
_RESERVED_BYTES = 4 << 20
_reserve: list[bytearray] = []
# The system's own function, which sends nothing to other ranks.
_exit = os._exit


class _World(NamedTuple):
    """This rank, and the number of all ranks."""

    rank: int
    size: int


def abort(code: int = 1) -> None:
    """Ends all ranks, or at least this one.

    Args:
        code (int): The exit code.
    """
    # MPI's abort asks mpiexec to end the ranks, and waits. Behind a link that is cut,
    # no answer comes. The call holds Python's lock meanwhile, so no thread of Python
    # could end it. An alarm of the kernel does, without memory, threads or files.
    has_others = True
    try:
        _end_after(_START_SECONDS)
        has_others = _world().size > 1
        if has_others:
            # MPI is slow to load. If this rank has failed before it loaded MPI, the
            # others wait for it while they start MPI.
            from mpi4py import MPI

            if not MPI.Is_initialized():
                MPI.Init()
            _end_after(_ABORT_SECONDS)
            MPI.COMM_WORLD.Abort(code)
    finally:
        try:
            if has_others:
                # MPI could not be loaded. If a rank ends before it has started MPI,
                # some launchers notice only an end by a signal.
                _let_end(signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)
        finally:
            _exit(code)


def _end_after(seconds: int) -> None:
    _let_end(signal.SIGALRM)
    signal.alarm(seconds)


def _let_end(number: int) -> None:
    # Only the main thread may do this; only a handler set by a script makes it needed.
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, signal.SIG_DFL)


def let_lower_ranks_speak() -> None:
    """Waits, on ranks other than 0, because a lower rank may report the same and abort.

    So an error that all ranks have is reported once.
    """
    time.sleep(min(_world().rank, 2) * _SECONDS_TO_WAIT_FOR_LOWER_RANKS)


def is_world_up() -> bool:
    """Returns whether there are other ranks to end."""
    return _world().size > 1


def _world() -> _World:
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or not MPI.Is_initialized():
        here = launch()
        return _World(here.rank, here.n_ranks) if is_one_of_several() else _World(0, 1)
    if MPI.Is_finalized():
        # No other ranks are left to end.
        return _World(0, 1)
    return _World(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)


def end_all_ranks(
    what: str, report: Callable[[], None], code: int = 1, has_records: bool = True
) -> None:
    """Reports the reason on this rank, and ends all ranks.

    Args:
        what (str): Words for the event, which follow the name of this rank.
        report: Prints the rest of the report.
        code (int): The exit code.
        has_records (bool): Whether to print the flight records of all ranks, as the
            reason lies between ranks. Else a line names the directory of the records.
    """
    _reserve.clear()
    _end_after(_SECONDS_TO_SAY)
    if not _ending.acquire(blocking=False):
        # Another thread is about to end the ranks.
        time.sleep(_ABORT_SECONDS + _START_SECONDS)
    try:
        _say(what, report, has_records)
    finally:
        # The ranks must end even if the report failed.
        abort(code)


def _say(what: str, report: Callable[[], None], has_records: bool) -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    rank, size = _world()
    whom = "ends all ranks" if size > 1 else "ends"
    where = f"rank {rank} of {size} on {socket.gethostname()}"
    sys.stderr.write(f"\n{where} {what} and {whom}:\n")
    if size > 1:
        with contextlib.suppress(Exception):
            flight_report.print_at_end(has_records)
    report()
    sys.stderr.flush()
    if size > 1:
        # When a rank aborts, mpiexec drops output that it has not read yet.
        time.sleep(0.5)


def abort_on_error() -> None:
    """Makes an uncaught exception on one rank, in any thread, end all ranks.

    Without it a rank that fails leaves the others waiting for its messages. The
    traceback is printed with the rank and host it comes from. An error that every rank
    raises alike is printed once. The import of ``pipeline`` calls this where a launcher
    has started several ranks, and :class:`~pipeline.Pipeline` in any case.

    On a single rank an exception in a thread ends the process as well, because the main
    thread may wait for the results of that thread. Two cases are exceptions: a custom
    ``threading.excepthook``, as pytest sets one, and an interactive Python.

    A call of ``sys.exit`` is no exception in this sense. The other ranks end with an
    error as soon as they wait for this rank. They do so in a later step of a pipeline,
    in an exchange of gradients, or in another call of all ranks. Under ``divisible
    run`` they end at once if the exit code is not 0. The same holds for
    ``os._exit(0)``, after which launchers would otherwise kill the other ranks and end
    the job with 0.

    Example:
        >>> import sys, threading
        >>> from pipeline import abort_on_error
        >>> hooks = sys.excepthook, threading.excepthook
        >>> abort_on_error()
        >>> sys.excepthook, threading.excepthook = hooks
    """
    if is_world_up() and not _reserve:
        _reserve.append(bytearray(_RESERVED_BYTES))
    if is_world_up():
        hear_exits()
    if is_world_up() and not isinstance(sys.excepthook, _AbortHook):
        sys.excepthook = _AbortHook(sys.excepthook)
    if isinstance(threading.excepthook, _ThreadHook):
        return
    is_pythons_own = isinstance(threading.excepthook, types.BuiltinFunctionType)
    is_interactive = hasattr(sys, "ps1")
    if is_world_up() or (is_pythons_own and not is_interactive):
        threading.excepthook = _ThreadHook(threading.excepthook)


class _AbortHook:
    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._process = os.getpid()

    def __call__(self, kind: type, error: BaseException, trace: Any) -> None:
        # A process that a rank has forked is not a rank.
        if is_world_up() and os.getpid() == self._process:
            _fail("failed", error, lambda: self._report(kind, error, trace))
        self._report(kind, error, trace)


class _ThreadHook:
    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._process = os.getpid()

    def __call__(self, raised: Any) -> None:
        ends_thread_only = issubclass(raised.exc_type, SystemExit)
        is_forked = os.getpid() != self._process
        if ends_thread_only or is_forked or _is_left_behind(raised.thread):
            self._report(raised)
            return
        name = "a thread" if raised.thread is None else f"thread {raised.thread.name!r}"
        _fail(f"failed in {name}", raised.exc_value, lambda: self._report(raised))


def _is_left_behind(thread: threading.Thread | None) -> bool:
    """Returns whether the script has ended without waiting for the thread."""
    is_daemon = thread is not None and thread.daemon
    return is_daemon and not threading.main_thread().is_alive()


def _fail(what: str, error: BaseException | None, report: Callable[[], None]) -> None:
    """Ends all ranks after an exception, unless a lower rank ends them first."""
    _reserve.clear()
    _end_after(_SECONDS_TO_SAY)
    # A rank whose wait was too long reports it at once: the next rank, which waits for
    # this one, would report less. MPI fails if another rank was killed: then this rank
    # is not the cause, and the launcher is about to end it.
    if not isinstance(error, StallError) and not is_of_mpi(error):
        if error is not None:
            own_flight_record.fail(error)
        let_lower_ranks_speak()
    end_all_ranks(what, report, has_records=_is_between_ranks(error))


def _is_between_ranks(error: BaseException | None) -> bool:
    """Returns whether an error comes from what ranks do together."""
    if isinstance(error, (StallError, DisagreementError, KeyboardInterrupt)):
        return True
    return is_of_mpi(error)
