"""Waits that yield the core, and end."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from divisible.communication.busy import mark_left
from divisible.communication.errors import StallError, is_of_mpi
from divisible.communication.farewells import check_farewells
from divisible.communication.flight_record import (
    BEGIN,
    END,
    NOBODY,
    WAIT,
    own_flight_record,
)
from divisible.communication.roll_call import Place, answer, explain

# An MPI library spins while it waits, which starves the other ranks when they
# share a core and wastes the quota of a host that has less than one. So this
# module polls: at first at once, for the latency of messages up to a few megabytes,
# then with sleeps of a share of the time already waited, within bounds.
_SPIN_SECONDS = 200e-6
_SHORTEST_SLEEP = 20e-6
_LONGEST_SLEEP = 1e-3
_SLEEP_SHARE = 0.01
# What counts of the time between two polls. A process that is suspended, as some batch
# systems do with whole jobs, polls nothing meanwhile.
_LONGEST_POLL = 1.0
# A wait from which on it is written down, and other ranks are listened to, and how
# often. Each costs more than a poll, and in a step that goes on as it should none is.
_LONG_WAIT = 0.05
_SECONDS_BETWEEN_ANSWERS = 0.01
# What was waited for when a wait ended with an error: MPI may still write into the
# arrays that the requests hold on to. So they are never freed.
_abandoned: list[Callable[[], Any]] = []


def wait(
    test: Callable[[], Any],
    timeout: float,
    waiting_for: Callable[[], str],
    watch: Callable[[], None] | None = None,
    place: Place | None = None,
) -> Any:
    """Polls ``test`` until it returns something true, and returns that.

    Args:
        test: The question to repeat, such as an MPI request's ``Test``.
        timeout (float): Seconds after which to give up.
        waiting_for: Says what is awaited and from whom, for the error message; where it
            is something of all ranks, what they are to do, such as ``'to save'``.
        watch: Called after each answer that is not true; may raise to end the wait.
        place (Place or None): Whom to ask who is missing. Its communicator is never
            freed if the wait ends with an error.

    Raises:
        StallError: If the time is over, a rank that is to take part has ended its
            script, or the MPI library fails, as it may when that rank is killed. Time
            in which the process is suspended does not count, but for a second.
    """
    try:
        return _poll(test, timeout, waiting_for, watch, place)
    except BaseException as error:
        _abandoned.append(test)
        if place is not None:
            mark_left(place.comm)
        if is_of_mpi(error):
            raise StallError(
                f"MPI failed during a wait for {waiting_for()}: {error}. The rank that"
                f" is waited for may have been killed: the launcher prints the number"
                f" of a killed process, and 'divisible flight-record' the number of"
                f" each rank's process"
            ) from error
        raise


def _poll(
    test: Callable[[], Any],
    timeout: float,
    waiting_for: Callable[[], str],
    watch: Callable[[], None] | None,
    place: Place | None,
) -> Any:
    now, waited, next_answer = time.perf_counter(), 0.0, _LONG_WAIT
    while True:
        result = test()
        if result:
            if next_answer > _LONG_WAIT:
                own_flight_record.write(WAIT, END, waiting_for(), _peer(place))
            return result
        if watch is not None:
            watch()
        last, now = now, time.perf_counter()
        waited += min(now - last, _LONGEST_POLL)
        if waited > timeout:
            text = waiting_for()
            why = text if place is None else explain(text, place)
            raise StallError(f"waited {waited:.0f} s for {why}")
        if waited > next_answer:
            if next_answer == _LONG_WAIT:
                own_flight_record.write(WAIT, BEGIN, waiting_for(), _peer(place))
            next_answer = waited + _SECONDS_BETWEEN_ANSWERS
            check_farewells(waiting_for, place)
            if place is not None:
                answer(waiting_for(), place)
        if waited > _SPIN_SECONDS:
            time.sleep(min(_LONGEST_SLEEP, max(_SHORTEST_SLEEP, waited * _SLEEP_SHARE)))


def _peer(place: Place | None) -> int:
    return NOBODY if place is None else place.peer


@contextmanager
def kept_at_errors(value: Any) -> Iterator[None]:
    """Keeps what MPI may still write to or read from after an error within.

    Args:
        value: Requests and arrays, such as a list that is filled within.
    """
    try:
        yield
    except BaseException:
        never_free(value)
        raise


def never_free(value: Any) -> None:
    """Keeps an object up to the end of MPI, when Python has freed everything else."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
