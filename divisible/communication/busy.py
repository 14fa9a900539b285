"""Communicators with messages under way, which must not be freed.

MPI gives the place of a freed communicator to the next one, which would receive the
messages of the first. So :func:`free` leaves a busy communicator as it is.

A communicator is busy for a while, from :func:`mark_busy` to :func:`mark_idle`. After
:func:`mark_left` it is busy forever: an error has ended a wait for other ranks, or the
code between the start of an operation and its wait.
"""

from __future__ import annotations

from mpi4py import MPI

# Keys are identities. The communicators are kept, so that no other gets the identity.
_for_a_while: dict[int, MPI.Comm] = {}
_for_ever: dict[int, MPI.Comm] = {}


def mark_busy(comm: MPI.Comm) -> None:
    """Marks a communicator that must not be freed while messages are under way."""
    _for_a_while[id(comm)] = comm


def mark_idle(comm: MPI.Comm) -> None:
    """Removes the mark of :func:`mark_busy`, but not the one of :func:`mark_left`."""
    _for_a_while.pop(id(comm), None)


def mark_left(comm: MPI.Comm) -> None:
    """Marks a communicator that is never freed: messages of others may still come."""
    _for_ever[id(comm)] = comm


def is_busy(comm: MPI.Comm) -> bool:
    """Returns whether a communicator must not be freed."""
    return id(comm) in _for_a_while or id(comm) in _for_ever


def free(comm: MPI.Comm) -> None:
    """Frees a communicator, unless it is busy; a call of all of its ranks.

    Ranks need not agree: MPI gives a place away once all ranks have freed it.
    """
    if comm and not is_busy(comm):
        comm.Free()
