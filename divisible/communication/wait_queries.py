"""Questions to other ranks: which ranks are missing from a wait.

A collective operation does not tell for which rank it waits, and the rank that should
send a message may be waiting itself. So when a wait has timed out, its rank asks all
others. Ranks that are waiting answer for which rank they wait::

    rank 0   waits for rank 1 ... asks all --- has one answer --> "... Rank 1 waits
    rank 1   waits for rank 2 ... answers                         for rank 2. Rank 2
    rank 2   reads a file ......................                  does not answer"

Ranks check for questions only when a wait has taken long.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from divisible.communication.errors import in_words
from divisible.communication.flight_record import EVERYBODY
from divisible.communication.tags import ANSWER_TAG, QUESTION_TAG

# Seconds in which the others can answer.
_SECONDS_TO_ANSWER = 0.5
# An error message explains the waits of this many ranks.
_MOST_TOLD = 4


class WaitPlace(NamedTuple):
    """The place of a wait: a communicator, and the rank that is waited for.

    Attributes:
        comm (mpi4py.MPI.Comm): The communicator of the awaited rank.
        peer (int): The awaited rank, or `EVERYBODY`.
        call (int): The number of the call that all ranks are to make, if the wait is
            for a call.
    """

    comm: MPI.Comm
    peer: int
    call: int = 0


class _Whereabouts(NamedTuple):
    """A rank's answer: words for its wait, the awaited rank, and the call it is in."""

    waiting_for: str
    peer: int
    call: int
    call_name: str
    is_same_comm: bool


class WaitQueries:
    """The questions and answers over one communicator.

    Attributes:
        call (tuple): The number and the name of the call that this rank makes with the
            others, if they count calls.
        titles (dict): Further names of ranks in messages, by rank.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.call = (0, "")
        self.titles: Mapping[int, str] = {}
        # A rank that has asked answers no more: it is about to end all ranks.
        self._have_asked: dict[int, _Whereabouts] = {}
        self._sent: list[MPI.Request] = []

    def _here(self, waiting_for: str, place: WaitPlace) -> _Whereabouts:
        same = place.comm == self.comm
        return _Whereabouts(waiting_for, place.peer, *self.call, same)

    def answer(self, waiting_for: str, place: WaitPlace) -> None:
        """Answers ranks that ask for which rank this one waits."""
        for rank, whereabouts in self._heard(QUESTION_TAG):
            if rank >= self.comm.size:
                # The question was sent over another communicator with more ranks, which
                # was freed before anyone received it. MPI reuses its place for this
                # one.
                continue
            self._have_asked[rank] = whereabouts
            self._tell(rank, ANSWER_TAG, self._here(waiting_for, place))

    def ask(self, waiting_for: str, place: WaitPlace) -> dict[int, _Whereabouts]:
        """Asks all other ranks, and returns the answers; silent ranks are left out."""
        others = set(range(self.comm.size)) - {self.comm.rank}
        for rank in others:
            self._tell(rank, QUESTION_TAG, self._here(waiting_for, place))
        said: dict[int, _Whereabouts] = {}
        deadline = time.monotonic() + _SECONDS_TO_ANSWER
        while others - said.keys() and time.monotonic() < deadline:
            answer(waiting_for, place)
            said.update(self._have_asked)
            said.update(self._heard(ANSWER_TAG))
            time.sleep(0.001)
        return said

    def _tell(self, rank: int, tag: int, whereabouts: _Whereabouts) -> None:
        data = np.frombuffer(pickle.dumps(tuple(whereabouts)), np.uint8)
        self._sent.append(self.comm.Isend(data, rank, tag))

    def _heard(self, tag: int) -> Iterator[tuple[int, _Whereabouts]]:
        status = MPI.Status()
        while message := self.comm.Improbe(MPI.ANY_SOURCE, tag, status):
            data = bytearray(status.Get_count(MPI.BYTE))
            message.Recv([data, MPI.BYTE])
            yield status.source, _Whereabouts(*pickle.loads(data))


# Communicators over which a rank may ask. Keys are their handles in Fortran.
_wait_queries_of: dict[int, WaitQueries] = {}


def wait_queries(comm: MPI.Comm) -> WaitQueries:
    """Returns the questions and answers over a communicator.

    From now on this rank answers questions over it, until the communicator is freed.
    """
    handle = comm.py2f()
    if handle not in _wait_queries_of or not _wait_queries_of[handle].comm:
        _wait_queries_of[handle] = WaitQueries(comm)
    return _wait_queries_of[handle]


@contextlib.contextmanager
def listening(comm: MPI.Comm) -> Iterator[WaitQueries]:
    """Answers questions over a communicator within; it may be one of the user's."""
    handle = comm.py2f()
    is_ours = handle in _wait_queries_of
    try:
        yield wait_queries(comm)
    finally:
        if not is_ours:
            _wait_queries_of.pop(handle, None)


def answer(waiting_for: str, place: WaitPlace) -> None:
    """Answers questions over any communicator. Waits call this again and again.

    Args:
        waiting_for (str): Words for the awaited event, such as ``'what rank 1 sends'``.
            If all ranks are awaited, the purpose, such as ``'to save'``.
        place (WaitPlace): The place of this rank's wait.
    """
    for each in list(_wait_queries_of.values()):
        if each.comm:
            each.answer(waiting_for, place)


def explain(waiting_for: str, place: WaitPlace) -> str:
    """Asks the other ranks, and returns text on the ranks that are missing.

    If they cannot be asked, the text is only for what this rank waits. An error in here
    must not hide that the wait has timed out.

    Args:
        waiting_for (str): Words for the awaited event; see :func:`answer`.
        place (WaitPlace): The place of this rank's wait.
    """
    try:
        with listening(place.comm) as asked:
            said = asked.ask(waiting_for, place)
            return _who(waiting_for, place, said, asked.titles)
    except Exception:
        is_of_all = place.peer == EVERYBODY
        return f"all ranks {waiting_for}" if is_of_all else waiting_for


def _who(
    waiting_for: str,
    place: WaitPlace,
    said: dict[int, _Whereabouts],
    titles: Mapping[int, str],
) -> str:
    me, size = place.comm.rank, place.comm.size
    silent = sorted(set(range(size)) - said.keys() - {me})
    if place.peer == EVERYBODY:
        elsewhere = {
            rank: theirs
            for rank, theirs in said.items()
            if not _is_here(theirs, waiting_for, place)
        }
        absent = sorted({*silent, *elsewhere})
        here = sorted(set(range(size)) - set(absent))
        verb = "is" if len(here) == 1 else "are"
        whom = in_words(absent, titles) if absent else f"all {size} ranks"
        first = f"{whom} {waiting_for} ({in_words(here)} {verb} here)"
        told = sorted(elsewhere)
    else:
        first = waiting_for
        told, silent = _chain(place.peer, said, silent)
    sentences = [_tell_of(rank, said[rank], titles) for rank in told[:_MOST_TOLD]]
    return ". ".join([first, *sentences, _blame(silent, titles)])


def _is_here(theirs: _Whereabouts, waiting_for: str, place: WaitPlace) -> bool:
    if place.call:
        # A rank that has begun the call is not missing.
        return theirs.call >= place.call
    waits = theirs.waiting_for, theirs.peer, theirs.is_same_comm
    return waits == (waiting_for, EVERYBODY, True)


def _chain(
    peer: int, said: dict[int, _Whereabouts], silent: list[int]
) -> tuple[list[int], list[int]]:
    """Returns a chain of ranks that wait for each other, and silent ones at its end."""
    told: list[int] = []
    while peer in said and peer not in told:
        told.append(peer)
        peer = said[peer].peer
    if peer != EVERYBODY:
        silent = [rank for rank in silent if rank == peer]
    return told, silent


def _tell_of(rank: int, theirs: _Whereabouts, titles: Mapping[int, str]) -> str:
    whom = "others " if theirs.peer == EVERYBODY else ""
    call = f", in call {theirs.call}, {theirs.call_name}" if theirs.call else ""
    who = _begun(in_words([rank], titles))
    return f"{who} itself waits for {whom}{theirs.waiting_for}{call}"


def _blame(silent: list[int], titles: Mapping[int, str]) -> str:
    if not silent:
        return (
            "All of these ranks answer: a message between them is lost, or they make"
            " different calls"
        )
    whom = _begun(in_words(silent, titles))
    if len(silent) == 1:
        return (
            f"{whom} does not answer: it is stopped, cut off, or does something else;"
            f" if it is only slow, give a longer timeout"
        )
    return (
        f"{whom} do not answer: they are stopped, cut off, or do something else; if"
        f" they are only slow, give a longer timeout"
    )


def _begun(words: str) -> str:
    """Returns words with a capital letter at the beginning."""
    return words[0].upper() + words[1:]
