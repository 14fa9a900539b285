"""A parent of each rank, which says what ended the rank when the rank cannot.

A process that the kernel kills for want of memory says nothing, and the launcher kills
the other ranks before they notice. ``divisible run`` forks before it loads anything::

    launcher -- guard -- rank       the guard waits; the rank runs the script
                  |        x        killed by signal 9
                  '- "rank 1 of 4 on node17 was killed by signal 9: out of memory? ..."

Then the guard ends in the same way, which is what the launcher sees. Launchers signal
groups of processes, in which guard and rank are together, so the guard hands no signal
on. Whatever ends the guard ends the rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys

from divisible.communication.launchers import is_one_of_several, launch

#: Signals that end a process for what it has done, or has used up.
_TOLD = (
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGXCPU,
    signal.SIGXFSZ,
    signal.SIGSYS,
)
# Signals that are meant for the rank.
_PASSED_BY = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGQUIT,
    signal.SIGALRM,
)
# The number of this option of Linux's prctl.
_SIGNAL_AT_PARENTS_END = 1


def guard_rank() -> None:
    """Goes on in a child of this process, if it is one of several ranks.

    Only on Linux, where a child ends with its parent whatever happens.
    """
    if not sys.platform.startswith("linux") or not is_one_of_several():
        return
    guard, ends_with_parent = os.getpid(), ctypes.CDLL(None).prctl
    # Some programs start others with this signal ignored: then the system tells no
    # parent how a child has ended.
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    rank = os.fork()
    if rank:
        _watch(rank)
    signal.signal(signal.SIGCHLD, before)
    ends_with_parent(_SIGNAL_AT_PARENTS_END, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)


def _watch(rank: int) -> None:
    """Waits for the end of a rank, and ends in the same way."""
    for number in _PASSED_BY:
        signal.signal(number, signal.SIG_IGN)
    _, status, used = os.wait4(rank, 0)
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    # Whatever is wrong with the words, the launcher must know of the end.
    if number in _TOLD:
        with contextlib.suppress(Exception):
            _tell(rank, number, used)
    # The rank's memory is on disk already, if the system writes it there.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _tell(process: int, number: int, used: resource.struct_rusage) -> None:
    here, name = launch(), signal.Signals(number).name
    what = f"was killed by signal {number}"
    what += ": out of memory?" if number == signal.SIGKILL else f", {name}."
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sys.stderr.write(
        f"\nrank {here.rank} of {here.n_ranks} on {socket.gethostname()}, process"
        f" {process}, {what} It held {used.ru_maxrss / 1e6:.2f} GB at most, and this"
        f" host has {has / 1e9:.1f} GB.\n"
    )
    sys.stderr.flush()
    # These load more than a guard needs to have while it waits.
    from divisible.communication import flight_files, flight_report, flight_search

    path = flight_search.of_process(process)
    if path is not None:
        flight_files.add_end(path, what.removeprefix("was "))
        text = flight_report.as_text(flight_files.logs(path.parent), path.parent)
        sys.stderr.write(text)
        sys.stderr.flush()
