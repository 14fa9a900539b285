import signal

import pytest

from divisible.communication.flight_record import (
    ACTION,
    BEGIN,
    CALL,
    END,
    N_ENTRIES,
    RECEIVE,
    WAIT,
    FlightRecord,
    read,
    with_end,
)
from pipeline.supervision.endings import Kind, ending


def log(rank, n_steps, failure=None, killed=None):
    """Returns the flight record of a rank after so many steps."""
    record = FlightRecord()
    record.name_rank(rank, 3)
    for number in range(1, n_steps + 1):
        record.begin_call(1, number, "step")
        record.write(CALL, END, "step")
        record.end_step()
    if failure is not None:
        record.begin_call(1, n_steps + 1, "step")
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
        (75, Kind.STOPPED, "stopped the training"),
        (-signal.SIGKILL, Kind.LOST, "SIGKILL"),
        (128 + signal.SIGTERM, Kind.LOST, "SIGTERM"),
        # As MPICH's launcher reports a rank that was killed on another host.
        (int(signal.SIGKILL), Kind.LOST, "SIGKILL"),
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
        record.end_step()
    record.begin_call(1, 4, "step")
    for _ in range(N_ENTRIES):
        record.write(ACTION, BEGIN, "0F0")
    assert ending(1, [record.log()]).n_steps == 3


def test_steps_that_a_snapshot_has_are_those_before_it():
    record = FlightRecord()
    for number in (1, 2, 3):
        record.begin_call(1, number, "step")
        record.write(CALL, END, "step")
        record.end_step()
        if number == 2:
            record.save(number)
    found = ending(-signal.SIGKILL, [log(1, 3), record.log()])
    assert (found.n_steps, found.n_saved) == (3, 2)
    assert ending(-signal.SIGKILL, [log(1, 3)]).n_saved == 0


def test_a_stall_names_the_rank_that_does_not_answer():
    """Rank 0 waits for rank 1, which waits for rank 2, which computes."""
    records = [FlightRecord() for _ in range(3)]
    for rank, record in enumerate(records):
        record.name_rank(rank, 3)
        record.begin_call(1, 1, "step")
    for rank in (0, 1):
        records[rank].write(RECEIVE, BEGIN, f"0B0<{rank + 1}", peer=rank + 1)
        records[rank].write(WAIT, BEGIN, "a message")
    records[0].fail(StallError("waited 5 s for 0B0<1"))
    records[2].write(ACTION, BEGIN, "2F0")
    logs = [record.log() for record in records]
    found = ending(1, logs)
    assert found.kind is Kind.LOST and found.rank == 2
    assert found.reason.startswith("rank 2 on ") and "did not answer: rank 0" in (
        found.reason
    )
    # The records of other hosts may be missing.
    assert ending(1, logs[:2]).rank == 2
    assert ending(1, logs[:1]).reason.startswith("rank 1 did not answer: rank 0 on ")
    # Ranks that wait for each other have both answered.
    records[2].write(RECEIVE, BEGIN, "0B0<0", peer=0)
    logs[2] = records[2].log()
    found = ending(1, logs)
    assert found.rank == 0 and found.reason.startswith("rank 0 on ")


def test_the_rank_of_a_loss_is_known():
    assert ending(1, [log(0, 2), log(1, 2, killed="killed by signal 9")]).rank == 1
    assert ending(1, [log(0, 2), log(1, 2, TypeError("no loss"))]).rank == 1
    assert ending(-signal.SIGKILL, []).rank is None
