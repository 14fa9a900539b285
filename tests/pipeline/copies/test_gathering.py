"""Hosts get the files that they lack from hosts that have them."""

from types import SimpleNamespace

from pipeline.copies.gathering import Found, transfers_to
from pipeline.copies.sending import Transfer

FILES = {f"stage-{i}.npz": {"bytes": 10 + i} for i in range(3)}


def found(folders):
    return Found(SimpleNamespace(files=FILES), folders)


def names(*numbers):
    return [f"stage-{i}.npz" for i in numbers]


def on(*numbers):
    return {name: ["folder"] for name in names(*numbers)}


def test_files_of_the_own_place_are_not_sent():
    places = ["a", "a", "b"]
    copy = found({"a": on(0, 1), "b": on(1, 2)})
    sent = transfers_to([names(0, 1), names(2), names(1, 2)], places, copy)
    assert sent == [Transfer("stage-2.npz", 12, 2, 1)]


def test_the_ranks_of_a_place_send_in_turn():
    places = ["a", "a", "b"]
    sent = transfers_to([[], [], names(0, 1, 2)], places, found({"a": on(0, 1, 2)}))
    assert [each.source for each in sent] == [0, 1, 0]
    assert {each.target for each in sent} == {2}


def test_a_file_that_is_nowhere_is_lost():
    assert found({"a": on(0), "b": on(0, 2)}).lost == names(1)
    assert found({"a": on(0, 1), "b": on(2)}).lost == []
