"""The reason why the ranks of a run have ended.

Each rank leaves a flight record. The process above a rank adds to it what killed the
rank, and a rank that raises an error adds the error. Where several ranks have a reason,
that of the first row counts, because the others follow from it::

    killed by signal 9               the rank is lost
    TypeError: ...                   an error of the program
    StallError: rank 1 ...           a rank did not answer
"""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Sequence
from typing import NamedTuple

from divisible.communication.flight_record import (
    BEGIN,
    FAILURE,
    RECEIVE,
    WAIT,
    Log,
)
from pipeline.training.signals import STOPPED

_KILLED = re.compile(r"killed by signal \d+")
# Errors that follow from the end of another rank, or from its silence.
_OF_OTHERS = ("StallError", "Exception: MPI", "Exception: Other MPI")
# Exit codes above this one stand for signals, in shells and launchers.
_SIGNALS = 128
# MPICH's launcher returns the number itself, if a signal has killed a rank.
_NUMBERS = (signal.SIGKILL, signal.SIGBUS, signal.SIGSEGV, signal.SIGTERM)


class Kind(enum.Enum):
    """Kinds of ends; the value says whether the run starts again."""

    FINISHED = "finished"
    STOPPED = "stopped"
    LOST = "lost"
    ERROR = "error"


class Ending(NamedTuple):
    """The end of a run's ranks.

    Attributes:
        kind: Kind of the end.
        reason: Words for the end, with the rank and host if they are known.
        error: Text by which an error of the program is recognized when it comes again;
            empty if a rank was lost.
        n_steps: Number of steps of this start that all ranks had finished.
        n_saved: Number of those steps that a snapshot has.
        rank: Rank that was lost or did not answer; ``None`` if it is not known.
    """

    kind: Kind
    reason: str
    error: str
    n_steps: int
    n_saved: int = 0
    rank: int | None = None


def ending(code: int, logs: Sequence[Log]) -> Ending:
    """Finds out why the ranks of a run have ended.

    Args:
        code: Exit code of the launcher; negative for the number of a signal that ended
            it.
        logs: Flight records that the ranks left behind; none after a regular end.

    Returns:
        The end. Without any record, a signal means that a rank was lost, and another
        exit code an error of the program.

    Example:
        >>> ending(75, []).kind
        <Kind.STOPPED: 'stopped'>
        >>> ending(3, [])
        Ending(kind=<Kind.ERROR: 'error'>, reason='exit code 3', error='exit code 3', \
n_steps=0, n_saved=0, rank=None)
    """
    n_steps = min((log.n_steps for log in logs), default=0)
    n_saved = min(max((log.saved for log in logs), default=0), n_steps)
    kind, reason, error, rank = _cause(code, logs)
    return Ending(kind, reason, error, n_steps, n_saved, rank)


def _cause(code: int, logs: Sequence[Log]) -> tuple[Kind, str, str, int | None]:
    """Returns the kind, the words, the text of an error, and the rank of a cause."""
    if code == 0:
        return Kind.FINISHED, "all ranks have finished", "", None
    if code == STOPPED:
        return Kind.STOPPED, "a signal or an order stopped the training", "", None
    failures = sorted(
        (_order(text), log.rank, text, log) for log in logs for text in _failures(log)
    )
    if failures:
        order, rank, text, log = failures[0]
        where = f"{_named(log)}: {text}"
        if order == _ERROR:
            return Kind.ERROR, where, text, rank
        if order == _SILENT and (silent := _silent_rank(log, logs)) is not None:
            rank = silent
            names = [_named(each) for each in logs if each.rank == rank]
            where = f"{(names or [f'rank {rank}'])[0]} did not answer: {where}"
        return Kind.LOST, where, "", rank
    number = -code if code < 0 else code if code in _NUMBERS else code - _SIGNALS
    if number in set(signal.Signals):
        return Kind.LOST, f"{signal.Signals(number).name} ended the ranks", "", None
    text = f"exit code {code}"
    return Kind.ERROR, text, text, None


_LOST, _ERROR, _SILENT = range(3)


def _order(text: str) -> int:
    """Returns the place of a failure among others; the least one is the cause."""
    if _KILLED.match(text):
        return _LOST
    return _SILENT if text.startswith(_OF_OTHERS) else _ERROR


def _named(log: Log) -> str:
    return f"rank {log.rank} on {log.host}"


def _silent_rank(log: Log, logs: Sequence[Log]) -> int | None:
    """Returns the rank that a stalled rank waited for, directly or through others.

    ::

        rank 0: waits for rank 1, stalled
        rank 1: waits for rank 2
        rank 2: computes                     the silent one
    """
    others, known = {each.rank: each for each in logs}, {log.rank}
    while (awaited := _awaited(log)) is not None:
        if awaited in known:
            # Ranks that wait for each other have all answered.
            return None
        known.add(awaited)
        if awaited not in others:
            return awaited
        log = others[awaited]
    return log.rank if len(known) > 1 else None


def _awaited(log: Log) -> int | None:
    """Returns the rank for which a rank was waiting at the end of its record."""
    for entry in reversed(log.entries):
        if entry.kind == FAILURE:
            continue
        if entry.kind not in (RECEIVE, WAIT) or entry.phase != BEGIN:
            return None
        # A wait within a wait need not know the rank.
        if entry.peer >= 0:
            return entry.peer
    return None


def _failures(log: Log) -> list[str]:
    return [entry.text for entry in log.entries if entry.kind == FAILURE]
