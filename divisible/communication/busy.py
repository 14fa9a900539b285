"""Communicators on which messages are under way, which must not be freed.

MPI gives the place of a freed communicator to the next one, which would receive the
messages of the first. Nothing is freed that is busy, wherever it is freed:

==================  ================================================================
busy for a while    from :func:`mark_busy` to :func:`mark_idle`
busy for ever       once an error has ended a wait for other ranks
                    (:func:`~divisible.communication.waiting.wait` marks it), or what
                    goes on between the start of an operation and its wait
==================  ================================================================
"""

from __future__ import annotations

from mpi4py import MPI

# By identity; so they are not collected, and the identity is of no other.
_for_a_while: dict[int, MPI.Comm] = {}
_for_ever: dict[int, MPI.Comm] = {}


def mark_busy(comm: MPI.Comm) -> None:
    """Sees that a communicator is not freed while messages are under way on it."""
    _for_a_while[id(comm)] = comm


def mark_idle(comm: MPI.Comm) -> None:
    """Lets a communicator be freed again, unless it was left in the middle."""
    _for_a_while.pop(id(comm), None)


def mark_left(comm: MPI.Comm) -> None:
    """Sees that a communicator is never freed: messages of others may still come."""
    _for_ever[id(comm)] = comm


def is_busy(comm: MPI.Comm) -> bool:
    """Whether a communicator must not be freed."""
    return id(comm) in _for_a_while or id(comm) in _for_ever


def free(comm: MPI.Comm) -> None:
    """Frees a communicator that is not busy; a call of all of its ranks.

    Each rank judges by itself: MPI gives a place away once all have freed it.
    """
    if comm and not is_busy(comm):
        comm.Free()
