import dataclasses
import json

import pytest

from model_compression import CompressionPlan, Prune
from pipeline.compressing.journal import Journal, Round, Settings

SETTINGS = Settings(
    ["train.py"], "accuracy=-1", 0.2, None, ["l1"], [0.5], [4, 4], ["*"], 3, 8, None
)
PLAN = CompressionPlan([Prune("l1", layers="/0", to=0.5, granularity="row")])


def made(folder):
    rounds = [
        Round(0.3, 60.0, 1.0, PLAN.settings(), 0.9, {"/0": 50.0}, 1.1, True),
        Round(1.0, None, 0.5, PLAN.settings(), None, {"/0": 20.0}, 0.9, False),
    ]
    return Journal(folder, SETTINGS, "main/accuracy", 0.91, 2.5, {"/0": 0.1}, rounds)


def test_what_is_saved_is_read(tmp_path):
    journal = made(tmp_path)
    journal.save()
    again = Journal.begun(tmp_path, SETTINGS)
    assert again == journal
    assert again.best == 1 and again.plan(1) == PLAN
    assert [each.way for each in again.tries] == [0.3, 1.0]


def test_a_new_folder_has_a_new_journal(tmp_path):
    journal = Journal.begun(tmp_path / "new", SETTINGS)
    assert (journal.metric, journal.rounds, journal.best) == (None, [], None)


def test_another_session_is_refused(tmp_path):
    made(tmp_path).save()
    other = dataclasses.replace(SETTINGS, rounds=4)
    with pytest.raises(ValueError, match="another session: rounds was 3, not 4"):
        Journal.begun(tmp_path, other)


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("base", "high", "base"),
        ("rounds", 3, "its rounds are 3"),
        ("rounds", [{}], "round 1, {}, is not one"),
        ("rounds", [{"way": 1}], "round 1"),
        ("divisible", "plan", "compression by trying"),
    ],
)
def test_a_damaged_journal_is_refused(field, value, words, tmp_path):
    made(tmp_path).save()
    path = tmp_path / "journal.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, field: value}))
    with pytest.raises(ValueError, match="is not a journal") as caught:
        Journal.begun(tmp_path, SETTINGS)
    assert words in str(caught.value)
