"""Flight records say which rank is behind, and who waits for whom."""

import threading
from typing import NamedTuple

import pytest

from divisible.communication import flight_files, flight_report
from divisible.communication.flight_record import (
    ACTION,
    BEGIN,
    CALL,
    END,
    EVERYBODY,
    RECEIVE,
    WAIT,
    FlightRecord,
)
from divisible.communication.flight_report import verdict

TRAINING, EVALUATION = 0x3F2A9C1B, 0x0B11D2E4


class Call(NamedTuple):
    """Of another pipeline than the one for training."""

    pipeline: int
    number: int
    name: str


def log(rank, *events, n_ranks=3):
    record = FlightRecord()
    record.name_rank(rank, n_ranks)
    for event in events:
        if isinstance(event, Call):
            record.begin_call(*event)
        elif isinstance(event, tuple) and len(event) == 2:
            record.begin_call(TRAINING, *event)
        elif isinstance(event, tuple):
            record.write(*event)
        else:
            record.fail(event)
    return record.log()


STEP = (5, "step")
ENDED = (CALL, END, "step")
NEEDS_1 = (RECEIVE, BEGIN, "0B0<1", 1)
NEEDS_2 = (RECEIVE, BEGIN, "1B0<2", 2)
ALL = (WAIT, BEGIN, "to save", EVERYBODY)
AFTER = "after call 5, step, it made no other"
WAITS_0 = "rank 0 waits, in call 5, step, for 0B0<1"
WAITS_1 = "rank 1 waits, in call 5, step, for 1B0<2"


@pytest.mark.parametrize(
    "events, said",
    [
        (
            [[STEP, NEEDS_1], [STEP, NEEDS_2], [STEP, (ACTION, BEGIN, "2F0")]],
            [
                "rank 2 is behind: in call 5, step, it began 2F0, and did not end it",
                WAITS_0,
                WAITS_1,
            ],
        ),
        (
            [[STEP, NEEDS_1], [STEP, NEEDS_2], [STEP, ENDED]],
            [
                "rank 2 is behind: after call 5, step, it made no other",
                WAITS_0,
                WAITS_1,
            ],
        ),
        (
            [[STEP, NEEDS_1], [STEP, NEEDS_2], []],
            ["rank 2 is behind: it made no call yet", WAITS_0, WAITS_1],
        ),
        (
            [[STEP, NEEDS_1], [STEP, NEEDS_2], [STEP, ALL, (WAIT, END, "to save")]],
            [
                "rank 2 is behind: it began call 5, step, and is between the actions of"
                " it",
                WAITS_0,
                WAITS_1,
            ],
        ),
        (
            [
                [STEP, NEEDS_1],
                [STEP, (ACTION, BEGIN, "1F0"), ValueError("no")],
                [STEP, ENDED, (6, "save"), ALL],
            ],
            [
                "rank 1 is behind: in call 5, step, it failed: ValueError: no",
                WAITS_0,
                "rank 2 waits, in call 6, save, for all ranks to save",
            ],
        ),
        # All wait: one has made fewer calls.
        (
            [[(6, "save"), ALL], [STEP, NEEDS_2], [(6, "save"), ALL]],
            [
                "rank 1 is behind: waits, in call 5, step, for 1B0<2",
                "rank 0 waits, in call 6, save, for all ranks to save",
                "rank 2 waits, in call 6, save, for all ranks to save",
            ],
        ),
        (
            [[STEP, NEEDS_1], [STEP, NEEDS_2]],
            [
                WAITS_0,
                WAITS_1,
                "rank 2 has no record here: ended regularly, or on another host",
            ],
        ),
    ],
)
def test_the_rank_behind_is_named(events, said):
    assert verdict([log(rank, *each) for rank, each in enumerate(events)]) == said


OF_TRAINING, OF_EVALUATION = "of pipeline 3f2a, step", "of pipeline 0b11, evaluate"
EVALUATE = Call(EVALUATION, 3, "evaluate")
IN_STEP, IN_EVALUATE = [(40, "step"), NEEDS_1], [(40, "step"), EVALUATE, ALL]
IN_NEXT_STEP = [EVALUATE, (41, "step"), ALL]


@pytest.mark.parametrize(
    "events, behind",
    [
        # The numbers of calls are those of each pipeline: 3 is not behind 40.
        (
            [IN_STEP, IN_EVALUATE],
            [f"rank 0 is behind: waits, in call 40 {OF_TRAINING}"],
        ),
        (
            [IN_NEXT_STEP, IN_EVALUATE],
            [f"rank 1 is behind: waits, in call 3 {OF_EVALUATION}"],
        ),
        # Each is ahead in one: they make different calls.
        ([[(41, "step"), ALL], IN_EVALUATE], []),
        ([IN_EVALUATE, IN_EVALUATE], []),
    ],
)
def test_calls_are_compared_within_a_pipeline(events, behind):
    logs = [log(rank, *each, n_ranks=2) for rank, each in enumerate(events)]
    said = verdict(logs)
    assert [text.split(", for")[0] for text in said if "behind" in text] == behind
    assert len(said) == 2


def test_a_call_that_begins_after_one_that_failed_counts():
    events = [STEP, (ACTION, BEGIN, "0F0"), ValueError("no"), (6, "save"), ALL]
    assert verdict([log(0, *events, n_ranks=1)]) == [
        "rank 0 waits, in call 6, save, for all ranks to save"
    ]


def test_a_script_without_a_pipeline_adds_nothing_to_its_traceback(monkeypatch, capsys):
    record = FlightRecord()
    monkeypatch.setattr(flight_report, "own_flight_record", record)
    monkeypatch.setattr(flight_files, "job_directory", lambda: None)
    record.fail(ValueError("wrong"))
    flight_report.print_at_end()
    assert capsys.readouterr().err == ""
    record.begin_call(1, 1, "step")
    record.fail(ValueError("wrong again"))
    flight_report.print_at_end()
    assert "in call 1, step, it failed: ValueError" in capsys.readouterr().err


def test_ranks_without_a_record_are_counted_and_some_are_named():
    said = verdict([log(1, n_ranks=2**31 - 1)])[-1]
    named = ", ".join(map(str, [0, *range(2, 16)]))
    assert said.startswith(f"ranks {named} and 16 and 2147483630 more have no record")
    assert verdict([log(1)], are_all=False) == [
        "rank 1 is behind: it made no call yet",
    ]


def test_a_file_system_that_does_not_answer_hides_nothing_that_is_known(
    monkeypatch, capsys, tmp_path
):
    record = FlightRecord()
    record.name_rank(0, 2)
    record.begin_call(1, 5, "step")
    asked = threading.Event()
    monkeypatch.setattr(flight_report, "own_flight_record", record)
    monkeypatch.setattr(flight_report, "_SECONDS_TO_READ", 0.1)
    monkeypatch.setattr(flight_files, "job_directory", lambda: tmp_path)
    monkeypatch.setattr(flight_files, "is_on_this_host", lambda: False)
    monkeypatch.setattr(flight_files, "files", lambda folder: asked.wait(60) and [])
    flight_report.print_at_end()
    asked.set()
    said = capsys.readouterr().err
    assert "rank 0 is behind: it began call 5, step" in said
    assert "could not be read in time" in said
    assert "no record here" not in said
