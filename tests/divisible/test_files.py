"""Files that are there completely or not at all."""

import json

import pytest

from divisible.files import write_json, written_aside


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "plan.json"
    with written_aside(path) as aside:
        with open(aside, "w") as file:
            file.write("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_there_stays_if_writing_fails(tmp_path):
    path = tmp_path / "plan.json"
    write_json(path, {"cuts": [0, 2]})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"cuts": [0, float("nan")]})
    assert json.loads(path.read_text()) == {"cuts": [0, 2]}
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_before_it_writes_is_heard(tmp_path):
    with pytest.raises(KeyError), written_aside(tmp_path / "trace.json"):
        raise KeyError("no such rank")
    assert not list(tmp_path.iterdir())
