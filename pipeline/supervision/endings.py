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
    """

    kind: Kind
    reason: str
    error: str
    n_steps: int


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
n_steps=0)
    """
    n_steps = min((_finished_calls(log) for log in logs), default=0)
    if code == 0:
        return Ending(Kind.FINISHED, "all ranks have finished", "", n_steps)
    if code == STOPPED:
        return Ending(Kind.STOPPED, "a signal stopped the training", "", n_steps)
    failures = sorted(
        (_order(text), log.rank, text, log) for log in logs for text in _failures(log)
    )
    if failures:
        order, _, text, log = failures[0]
        where = f"rank {log.rank} on {log.host}: {text}"
        if order == _ERROR:
            return Ending(Kind.ERROR, where, text, n_steps)
        return Ending(Kind.LOST, where, "", n_steps)
    number = -code if code < 0 else code - _SIGNALS
    if number in set(signal.Signals):
        name = signal.Signals(number).name
        return Ending(Kind.LOST, f"{name} ended the ranks", "", n_steps)
    text = f"exit code {code}"
    return Ending(Kind.ERROR, text, text, n_steps)


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
