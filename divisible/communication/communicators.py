"""This package's own communicators: when they are made, and when they are freed.

MPI has some 2,000 communicators, and frees one only on all of its ranks together.
Python collects the object that used it at a different time on each rank. So when ranks
make the next communicator, they send each other the names of those that they no longer
use. A communicator is freed if no rank uses it and it is not busy
(:mod:`divisible.communication.busy`)::

    rank 0   A dropped ........... makes B: "A"  ---.
    rank 1   ....... A dropped ... makes B: "A"  ---+--> A is freed, B made
"""

from __future__ import annotations

import contextlib
import gc
import threading
import uuid
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mpi4py import MPI

from divisible.communication.busy import is_busy
from divisible.communication.collectives import wait_for_all
from divisible.communication.exit_notices import exit_notices, together
from divisible.communication.flight_record import EVERYBODY
from divisible.communication.wait_queries import WaitPlace, listening, wait_queries
from divisible.communication.waiting import wait

# Keys are names that all ranks of a communicator know.
_held: dict[str, MPI.Comm] = {}
_dropped: dict[str, MPI.Comm] = {}
# Objects in a circle of references are dropped only when Python collects garbage.
_N_HELD_TO_COLLECT = 256


class DuplicateAnnouncement(NamedTuple):
    """A rank's message to the others before they duplicate a communicator together.

    Attributes:
        name (str): A unique name. The duplicate gets the name of the first rank.
        dropped: The names of communicators that the rank no longer uses, with their
            numbers of ranks.
    """

    name: str
    dropped: Sequence[tuple[str, int]]


def announcement() -> DuplicateAnnouncement:
    """Returns the announcement of this rank."""
    if len(_held) % _N_HELD_TO_COLLECT == _N_HELD_TO_COLLECT - 1:
        gc.collect()
    no_longer = [(name, comm.size) for name, comm in _dropped.items() if comm]
    return DuplicateAnnouncement(uuid.uuid4().hex, no_longer)


def free_dropped(announcements: Sequence[DuplicateAnnouncement]) -> str:
    """Frees communicators that none of their ranks uses any longer.

    Args:
        announcements: The announcements of all ranks of a communicator, in rank order.

    Returns:
        str: A name for a duplicate.
    """
    counts = Counter(each for said in announcements for each in said.dropped)
    # Sorted, so that all ranks have the same order. Some may not belong to a freed one.
    for name, size in sorted(counts):
        if counts[name, size] == size and name in _dropped:
            _dropped.pop(name).Free()
    return announcements[0].name


def duplicate(
    comm: MPI.Comm, timeout: float, holder: Any, name: str, purpose: str = "to start"
) -> MPI.Comm:
    """Duplicates a communicator, so that messages cannot mix with the user's.

    Args:
        comm (mpi4py.MPI.Comm): The communicator to duplicate.
        timeout (float): Seconds to wait for the other ranks.
        holder: The object that uses the duplicate. Once it is collected on all ranks,
            the duplicate is freed, if it has not been before.
        name (str): The result of `free_dropped`, with a suffix if there are several
            duplicates.
        purpose (str): The purpose of the duplicate, for the error message.

    Raises:
        StallError: If another rank does not call this in time.
        RuntimeError: If MPI has no communicators left.
    """
    with _enough_communicators("duplicate"):
        new, request = comm.Idup()
        wait_for_all(comm, request, timeout, purpose)
    return _hold(new, holder, name)


def split(
    comm: MPI.Comm,
    color: int,
    key: int,
    timeout: float,
    holder: Any,
    name: str,
    purpose: str = "to start",
) -> MPI.Comm:
    """Divides a communicator: ranks with equal colors get one together.

    MPI has no split with a time limit. So ranks first wait for each other. A separate
    thread then makes it, and this thread waits until the timeout: a rank may die
    meanwhile.

    Args:
        comm (mpi4py.MPI.Comm): The communicator to divide.
        color (int): The color of this rank, from 0.
        key (int): Number by which the ranks of a color are sorted.
        timeout (float): Seconds to wait for the other ranks.
        holder: The object that uses the new communicator; see :func:`duplicate`.
        name (str): Name of the new communicator, different for each color.
        purpose (str): The purpose of the new communicator, for the error message.

    Raises:
        StallError: If another rank does not call this in time.
        RuntimeError: If MPI has no communicators left.
    """
    made: list[MPI.Comm] = []
    failed: list[MPI.Exception] = []

    def make() -> None:
        try:
            made.append(comm.Split(color, key))
        except MPI.Exception as error:
            failed.append(error)

    with _enough_communicators("divide"):
        wait_for_all(comm, comm.Ibarrier(), timeout, purpose)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            # The script has chosen an MPI that only one thread may use.
            make()
        else:
            thread = threading.Thread(target=make, name="split", daemon=True)
            thread.start()
            with together(comm), listening(comm):
                place = WaitPlace(comm, EVERYBODY)
                wait(lambda: made or failed, timeout, lambda: purpose, place=place)
        if failed:
            raise failed[0]
    return _hold(made[0], holder, name)


@contextlib.contextmanager
def _enough_communicators(verb: str) -> Iterator[None]:
    try:
        yield
    except MPI.Exception as error:
        raise RuntimeError(
            f"MPI could not {verb} a communicator: {error}. Pipelines and optimizers"
            f" of this process hold {len(_held)}. Close those that are not used any"
            f" more, by pipe.close() or 'with Pipeline(...) as pipe:', on all ranks; or"
            f" keep no reference to them"
        ) from error


def _hold(new: MPI.Comm, holder: Any, name: str) -> MPI.Comm:
    _held[name] = new
    wait_queries(new)
    exit_notices(new)
    weakref.finalize(holder, _drop, name).atexit = False
    return new


def _drop(name: str) -> None:
    comm = _held.pop(name)
    if comm and not is_busy(comm):
        _dropped[name] = comm
