"""The files of ranks: what was written is read, and nothing else is believed."""

import json

import pytest

from pipeline.watching.status_files import (
    FOLDER,
    Messages,
    RankStatus,
    make_folder,
    read_statuses,
    remove_others,
)
from tests.support.run_folders import make_run, status


def test_a_state_is_read_as_it_was_written(tmp_path):
    messages = [Messages(8, {"1>2 1F0": 1.5}, {"0>1 0F0": [1.0, 1.25]})]
    written = status(1, 3, messages=messages, slow=["rank 2 is slow"])
    written.values = {"main/loss": None}
    written.write(tmp_path)
    assert RankStatus.load(tmp_path / "rank-1.json") == written
    assert [each.name for each in tmp_path.iterdir()] == ["rank-1.json"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("rank", 3, "rank 3 of 3"),
        ("rank", -1, "rank is -1"),
        ("n_ranks", 2**40, "of 1099511627776"),
        ("time", "now", "time is 'now'"),
        ("time", 1e300, "time is 1e"),
        ("values", {"loss": "x"}, "must be a number"),
        ("now", {"computing": 1.0}, "now must have computing"),
        ("stages", {"0": 3}, "a start and an end"),
        ("slow", "rank 1", "slow must be a list"),
        ("messages", [{"step": 1}], "messages must have"),
        (
            "messages",
            [{"step": 1, "sent": {"x": 1.0}, "received": {}}],
            "'x' is no message",
        ),
        ("version", 2, "has version 2"),
        ("divisible", "plan", "another kind of file"),
        ("colour", 1, "no field 'colour'"),
    ],
)
def test_a_damaged_file_is_refused_with_its_field(tmp_path, field, value, words):
    status(1, 3).write(tmp_path)
    path = tmp_path / "rank-1.json"
    content = {**json.loads(path.read_text()), field: value}
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is not the status of a rank") as caught:
        RankStatus.load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_nothing_in_a_file_controls_the_terminal():
    held = status(0, 1, host="\x1b[2J", slow=["\x1b]0;x"], values={"\x1b[1m": 1.0})
    assert "\x1b" not in repr(held)


def test_states_are_of_the_newest_start(tmp_path):
    folder = make_run(tmp_path / "run") / FOLDER
    status(0, 2, job="later", time=2e9).write(folder)
    (folder / "rank-1.json").write_text("{")
    (folder / "rank-x.json").write_text("{")
    found = read_statuses(folder)
    assert [each.job for each in found.ranks] == ["later"]
    assert found.missing == [1]
    assert len(found.faults) == 1
    assert "rank-1.json" in found.faults[0]
    assert [each.rank for each in read_statuses(folder, "job").ranks] == [2]


def test_a_start_removes_the_files_of_more_ranks(tmp_path):
    folder = make_folder(tmp_path)
    for rank in range(4):
        status(rank, 4).write(folder)
    (folder / "rank-9.json.bak").write_text("")
    remove_others(folder, 2)
    names = sorted(each.name for each in folder.iterdir())
    assert names == ["rank-0.json", "rank-1.json", "rank-9.json.bak"]
