import signal

import pytest

from divisible.communication.flight_record import (
    ACTION,
    BEGIN,
    CALL,
    END,
    N_ENTRIES,
    FlightRecord,
    read,
    with_end,
)
from pipeline.supervision.endings import Kind, ending


def log(rank, n_calls, failure=None, killed=None):
    """Returns the flight record of a rank after so many calls."""
    record = FlightRecord()
    record.name_rank(rank, 3)
    for number in range(1, n_calls + 1):
        record.begin_call(1, number, "step")
        record.write(CALL, END, "step")
    if failure is not None:
        record.begin_call(1, n_calls + 1, "step")
        record.fail(failure)
    data = bytearray(record._memory)
    if killed is not None:
        with_end(data, killed)
    return read(bytes(data), "a test")


class StallError(Exception):
    """An error with the name of the one that a waiting rank raises."""


def test_the_cause_counts_and_not_what_follows_from_it():
    stalled = [log(r, 7, StallError("rank 1 ended its script")) for r in (0, 2)]
    killed = log(1, 6, killed="killed by signal 9: out of memory?")
    found = ending(1, [*stalled, killed])
    assert found.kind is Kind.LOST and found.error == ""
    assert found.reason.startswith("rank 1 on ") and "signal 9" in found.reason
    assert found.n_steps == 6

    wrong = log(1, 7, TypeError("no loss"))
    found = ending(1, [*stalled, wrong])
    assert found.kind is Kind.ERROR and found.error == "TypeError: no loss"
    assert found.n_steps == 7

    found = ending(1, stalled)
    assert found.kind is Kind.LOST and "StallError" in found.reason


@pytest.mark.parametrize(
    "code, kind, words",
    [
        (0, Kind.FINISHED, "finished"),
        (75, Kind.STOPPED, "signal stopped"),
        (-signal.SIGKILL, Kind.LOST, "SIGKILL"),
        (128 + signal.SIGTERM, Kind.LOST, "SIGTERM"),
        (3, Kind.ERROR, "exit code 3"),
    ],
)
def test_without_records_the_exit_code_decides(code, kind, words):
    found = ending(code, [])
    assert found.kind is kind and words in found.reason and found.n_steps == 0


def test_steps_count_if_a_long_call_has_filled_the_record():
    record = FlightRecord()
    for number in (1, 2, 3):
        record.begin_call(1, number, "step")
        record.write(CALL, END, "step")
    record.begin_call(1, 4, "step")
    for _ in range(N_ENTRIES):
        record.write(ACTION, BEGIN, "0F0")
    assert ending(1, [record.log()]).n_steps == 3


def test_steps_that_a_snapshot_has_are_those_before_it():
    record = FlightRecord()
    for number in (1, 2, 3):
        record.begin_call(1, number, "step")
        record.write(CALL, END, "step")
        if number == 2:
            record.save(number)
    found = ending(-signal.SIGKILL, [log(1, 3), record.log()])
    assert (found.n_steps, found.n_saved) == (3, 2)
    assert ending(-signal.SIGKILL, [log(1, 3)]).n_saved == 0
