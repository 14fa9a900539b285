"""Waits that yield the core, and have a limit."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from divisible.communication.busy import mark_left
from divisible.communication.errors import StallError, is_of_mpi
from divisible.communication.exit_notices import check_exit_notices
from divisible.communication.flight_record import (
    BEGIN,
    END,
    NOBODY,
    WAIT,
    own_flight_record,
)
from divisible.communication.wait_queries import WaitPlace, answer, explain

# An MPI library spins while it waits, which starves the other ranks when they
# share a core and wastes the quota of a host that has less than one. So this
# module polls: at first at once, for the latency of messages up to a few megabytes,
# then with sleeps of a share of the time already waited, within bounds.
_SPIN_SECONDS = 200e-6
_SHORTEST_SLEEP = 20e-6
_LONGEST_SLEEP = 1e-3
_SLEEP_SHARE = 0.01
# Longest time between two polls that counts. A suspended process does not poll; some
# batch systems suspend whole jobs.
_LONGEST_POLL = 1.0
# A wait of this many seconds is recorded, and answers other ranks from then on, at this
# interval. Both cost more than a poll, so a step without delays does neither.
_LONG_WAIT = 0.05
_SECONDS_BETWEEN_ANSWERS = 0.01
# The tests of waits that ended with an error, which are never freed: MPI may still
# write into the arrays of their requests.
_abandoned: list[Callable[[], Any]] = []


def wait(
    test: Callable[[], Any],
    timeout: float,
    waiting_for: Callable[[], str],
    watch: Callable[[], None] | None = None,
    place: WaitPlace | None = None,
) -> Any:
    """Polls ``test`` until it returns something true, and returns that.

    Args:
        test: The function to poll, such as an MPI request's ``Test``.
        timeout (float): Seconds after which to give up.
        waiting_for: Returns words for the awaited event and rank, for the error
            message. If all ranks are awaited, the purpose, such as ``'to save'``.
        watch: Called after each poll without result; may raise an error to end the
            wait.
        place (WaitPlace or None): The communicator and the awaited rank. Over it, a
            wait that takes too long asks which ranks are missing. The communicator is
            never freed if the wait ends with an error.

    Raises:
        StallError: If the time is over, an awaited rank has ended its script, or the
            MPI library fails, as it may when that rank is killed. At most a second of
            the time in which the process is suspended counts.
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
    place: WaitPlace | None,
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
            check_exit_notices(waiting_for, place)
            if place is not None:
                answer(waiting_for(), place)
        if waited > _SPIN_SECONDS:
            time.sleep(min(_LONGEST_SLEEP, max(_SHORTEST_SLEEP, waited * _SLEEP_SHARE)))


def _peer(place: WaitPlace | None) -> int:
    return NOBODY if place is None else place.peer


@contextmanager
def kept_at_errors(value: Any) -> Iterator[None]:
    """Keeps requests and arrays alive if the code within fails: MPI may still use them.

    Args:
        value: The requests and arrays, such as a list that is filled within.
    """
    try:
        yield
    except BaseException:
        never_free(value)
        raise


def never_free(value: Any) -> None:
    """Keeps an object until MPI ends, which is after Python has freed everything."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
