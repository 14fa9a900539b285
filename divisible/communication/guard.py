"""A parent process of each rank, which reports what ended the rank.

A process that the kernel kills for lack of memory can print nothing, and the launcher
kills the other ranks before they notice. So ``divisible run`` forks before it loads
anything::

    launcher -- guard -- rank       the guard waits; the rank runs the script
                  |        x        killed by signal 9
                  '- "rank 1 of 4 on node17 was killed by signal 9: out of memory? ..."

The guard then ends in the same way, for the launcher to see. Launchers send signals to
groups of processes. Guard and rank are in one group, so the guard passes no signal on.
The end of the guard, for whatever reason, ends the rank.
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

#: Signals for a fault of the process, or for its use of resources.
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
# Signals to the rank, which the guard ignores.
_PASSED_BY = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGQUIT,
    signal.SIGALRM,
)
# The number of an option of Linux's prctl.
_SIGNAL_AT_PARENTS_END = 1


def guard_rank() -> None:
    """Continues in a child of this process, if it is one of several ranks.

    Only Linux has this: there a child always ends with its parent.
    """
    if not sys.platform.startswith("linux") or not is_one_of_several():
        return
    guard, ends_with_parent = os.getpid(), ctypes.CDLL(None).prctl
    # Some programs start others with this signal ignored. The system then reports to no
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
    # The launcher must learn of the end even if the report fails.
    if number in _TOLD:
        with contextlib.suppress(Exception):
            _tell(rank, number, used)
    # If the system writes the memory of ended processes to disk, it has the rank's.
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
    # These modules load more than a waiting guard should hold in memory.
    from divisible.communication import flight_files, flight_report, flight_search

    path = flight_search.of_process(process)
    if path is not None:
        flight_files.add_end(path, what.removeprefix("was "))
        text = flight_report.as_text(flight_files.logs(path.parent), path.parent)
        sys.stderr.write(text)
        sys.stderr.flush()
