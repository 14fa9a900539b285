"""All that the files of a run contain, put together for another process."""

import json
import os
import time

import pytest

from divisible.communication.flight_record import (
    ACTION,
    BEGIN,
    RECEIVE,
    FlightRecord,
)
from pipeline.watching.events import events_of
from pipeline.watching.run_view import RunWatch, doing_of
from tests.support.run_folders import STARTED, make_run, status

HERE = FlightRecord().host


def test_events_come_from_all_logs_in_the_order_of_time(tmp_path):
    run = make_run(tmp_path)
    # Files of other kinds, and damaged ones, are no events.
    (run / "other.jsonl").write_text('{"a": 1}\nnonsense\n', encoding="utf-8")
    wait = {"time": STARTED + 1, "event": "wait", "line": "waits for hosts"}
    with open(run / "supervisor.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(wait) + "\n")
    texts = [(each.kind, each.text) for each in events_of(run)]
    begins = "begins: 9 layers in 3 stages on 3 ranks"
    assert texts == [
        ("start", begins),
        ("supervisor", "the ranks have ended, lost: rank 1 died"),
        ("start", f"step 40: {begins}"),
        ("supervisor", "waits for hosts"),
    ]
    assert events_of(tmp_path / "nowhere") == []


def test_a_view_is_plain_json(tmp_path):
    view = RunWatch(make_run(tmp_path)).look()
    content = json.loads(json.dumps(view.to_json(), allow_nan=False))
    assert [row["rank"] for row in content["ranks"]] == [0, 1, 2]
    assert content["ranks"][1]["seconds"]["computing"] == 0.5
    assert content["values"] == {"main/loss": 0.512, "main/accuracy": 0.9}
    assert content["bubble"] == pytest.approx(1 - 0.5 / 0.81)
    assert [event["kind"] for event in content["events"]] == [
        *("start", "supervisor", "start")
    ]


def test_ranks_that_have_stopped_writing_are_named(tmp_path):
    run = make_run(tmp_path)
    for rank in (0, 1):
        # No system gives this number to a process.
        gone = {"host": HERE, "process": 2**31 - 2} if rank else {}
        status(rank, 4, time=time.time() - 60, **gone).write(run / "ranks")
    status(2, 4, time=time.time(), slow=["x"]).write(run / "ranks")
    notices = RunWatch(run).look().notices
    assert notices[0].startswith("rank 3 has no state in this file system")
    assert notices[1].startswith("rank 0 on node0 has written nothing for 1:0")
    assert notices[2] == ("rank 1 has ended without a word: process 2147483646 is gone")
    assert len(notices) == 3


def test_the_reason_is_told_for_which_a_rank_has_ended(tmp_path):
    run = make_run(tmp_path)
    gone = {"host": HERE, "process": 2**31 - 2, "time": time.time() - 5}
    status(0, 3, **gone).write(run / "ranks")
    for rank in (1, 2):
        status(rank, 3, state="ValueError: boom").write(run / "ranks")
    view = RunWatch(run).look()
    assert view.notices == [
        "ranks 1 and 2 have ended: ValueError: boom",
        "rank 0 has ended without a word: process 2147483646 is gone",
    ]
    assert view.doing == {0: "is gone", 1: "has ended", 2: "has ended"}


def test_a_slow_file_system_is_no_silence(tmp_path):
    run = make_run(tmp_path)
    now = time.time()
    for rank in range(3):
        status(rank, 3, time=now - 20, between_files=25.0).write(run / "ranks")
    assert RunWatch(run).look().notices == []
    status(1, 3, time=now - 60, between_files=25.0).write(run / "ranks")
    (notice,) = RunWatch(run).look().notices
    assert notice.startswith("rank 1 on node1 has written nothing for 1:0")


def test_a_pipe_among_the_logs_is_left_out(tmp_path):
    run = make_run(tmp_path)
    os.mkfifo(run / "pipe.jsonl")
    assert len(events_of(run)) == 3


def test_a_folder_without_states_says_what_writes_them(tmp_path):
    with pytest.raises(ValueError, match=r"trainer.extend\(ProgressLine\(\)\)"):
        RunWatch(tmp_path).look()


def test_what_a_rank_does_comes_from_its_flight_record(tmp_path):
    record, path = FlightRecord(), tmp_path / "rank-1.flight"
    record.name_rank(1, 3)
    place = {"host": HERE, "process": os.getpid(), "flight_record": str(path)}
    now = time.time()

    def does(**changes):
        path.write_bytes(bytes(record._memory))
        return doing_of(status(1, 3, **{**place, **changes}), now)

    record.begin_call(1, 5, "step")
    assert does() == "is between actions of step"
    record.write(ACTION, BEGIN, "1F3")
    assert does() == "computes 1F3"
    record.write(RECEIVE, BEGIN, "1F4<0", peer=0)
    assert does() == "waits for 1F4<0"
    now += 75
    assert does() == "waits for 1F4<0, for 1:15"
    record.fail(TypeError("no"))
    assert does() == "has failed: TypeError: no"
    # The records of other hosts, of other processes, and of nobody.
    assert does(host="elsewhere") == does(process=1) == does(flight_record="") == ""
    assert does(state="finished") == "has ended"
    path.write_bytes(b"nonsense")
    assert doing_of(status(1, 3, **place), now) == ""
