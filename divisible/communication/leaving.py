"""The end of a rank, by the end of its script or by ``os._exit``.

Python calls no function at the end of a process that ends by ``os._exit``. A launcher
takes such a rank for a failed one. It kills the other ranks, and ends the job with the
exit code of this one, which may be 0::

    os._exit(0)     the launcher kills the other ranks; the job ends with 0

    with this       the rank notifies the others that it leaves, and ends MPI
                    ranks that wait for it fail, and name it; the job ends with 1

A process that is killed, or ended by C code, cannot notify other ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
from typing import Callable, NoReturn

_functions: list[Callable[[], None]] = []


def at_end(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a function for the end of a rank, by its script or by ``os._exit``.

    Args:
        function: Called once, without arguments, before MPI ends.
    """
    atexit.register(function)
    _functions.append(function)
    return function


def hear_exits() -> None:
    """Makes ``os._exit(0)`` of a rank a regular end for the other ranks."""
    if not isinstance(os._exit, _Exit):
        os._exit = _Exit(os._exit)


class _Exit:
    """Replaces ``os._exit``."""

    def __init__(self, exit: Callable[[int], NoReturn]) -> None:
        self._exit = exit
        self._process = os.getpid()

    def __call__(self, status: int) -> NoReturn:
        """Ends this process; see ``os._exit``."""
        try:
            # A process that the rank has forked is not a rank. Only the main thread may
            # end MPI. Any other exit code ends the job with that code.
            is_rank = os.getpid() == self._process
            is_main = threading.current_thread() is threading.main_thread()
            if status == 0 and is_rank and is_main and _leave():
                # MPICH reports its end to the launcher in a function that C calls at
                # the end of a process, after MPI_Finalize. Python runs nothing more.
                ctypes.PyDLL(None).exit(status)
        finally:
            self._exit(status)


def _leave() -> bool:
    """Ends MPI on several ranks. Returns whether MPI has ended, now or before."""
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or not MPI.Is_initialized():
        return False
    if not MPI.Is_finalized() and MPI.COMM_WORLD.size > 1:
        for function in reversed(_functions):
            # The other ranks must not be killed for an error in one function.
            with contextlib.suppress(Exception):
                function()
        MPI.Finalize()
    return MPI.Is_finalized()
