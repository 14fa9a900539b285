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

from divisible.communication.flight_record import CALL, END, FAILURE, Log
from pipeline.training.signals import STOPPED

_KILLED = re.compile(r"killed by signal \d+")
# Errors that follow from the end of another rank, or from its silence.
_OF_OTHERS = ("StallError", "Exception: MPI", "Exception: Other MPI")
# Exit codes above this one stand for signals, in shells and launchers.
_SIGNALS = 128


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
        n_steps: Number of calls of the pipeline, nearly all of them steps, that all
            ranks had finished.
        n_saved: Number of those calls that a snapshot of this start has.
    """

    kind: Kind
    reason: str
    error: str
    n_steps: int
    n_saved: int = 0


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
n_steps=0, n_saved=0)
    """
    n_steps = min((_finished_calls(log) for log in logs), default=0)
    n_saved = min(max((log.saved for log in logs), default=0), n_steps)
    return Ending(*_cause(code, logs), n_steps, n_saved)


def _cause(code: int, logs: Sequence[Log]) -> tuple[Kind, str, str]:
    """Returns the kind of an end, the words for it, and the text of its error."""
    if code == 0:
        return Kind.FINISHED, "all ranks have finished", ""
    if code == STOPPED:
        return Kind.STOPPED, "a signal stopped the training", ""
    failures = sorted(
        (_order(text), log.rank, text, log) for log in logs for text in _failures(log)
    )
    if failures:
        order, _, text, log = failures[0]
        where = f"rank {log.rank} on {log.host}: {text}"
        return (Kind.ERROR, where, text) if order == _ERROR else (Kind.LOST, where, "")
    number = -code if code < 0 else code - _SIGNALS
    if number in set(signal.Signals):
        return Kind.LOST, f"{signal.Signals(number).name} ended the ranks", ""
    text = f"exit code {code}"
    return Kind.ERROR, text, text


_LOST, _ERROR, _SILENT = range(3)


def _order(text: str) -> int:
    """Returns the place of a failure among others; the least one is the cause."""
    if _KILLED.match(text):
        return _LOST
    return _SILENT if text.startswith(_OF_OTHERS) else _ERROR


def _failures(log: Log) -> list[str]:
    return [entry.text for entry in log.entries if entry.kind == FAILURE]


def _finished_calls(log: Log) -> int:
    """Returns the number of the last call that a rank has finished.

    A long call may fill the record. The end of the call before is then lost.
    """
    done = [e.call - ((e.kind, e.phase) != (CALL, END)) for e in log.entries]
    return max([0, *done])
