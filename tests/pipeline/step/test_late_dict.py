"""A dict with late values is a dict to whatever reads it, and waits no earlier."""

from __future__ import annotations

import copy
import json
import operator
import pickle

import pytest

from pipeline.step.late_dict import LateDict, LateValue

VALUES = {"loss": 2.5, "accuracy": 0.5}

READS = {
    "item": lambda d: d["loss"],
    "get": lambda d: d.get("loss", 1.0),
    "get of another": lambda d: d.get("other", 1.0),
    "items": lambda d: list(d.items()),
    "values": lambda d: list(d.values()),
    "dict": lambda d: dict(d),
    "display": lambda d: {"a": 1, **d},
    "keywords": lambda d: dict(a=1, **d),
    "update": lambda d: dict(a=1) | d,
    "union": lambda d: d | {"a": 1},
    "into another": lambda d: (other := {"loss": 0.0}, other.update(d), other)[-1],
    "equal": lambda d: (d == VALUES, d != VALUES, d == {}, operator.eq(VALUES, d)),
    "repr": repr,
    "format": lambda d: f"{d} {d['loss']:.3f}",
    "format_map": lambda d: "{loss:.2f}".format_map(d),
    "copy": lambda d: copy.copy(d),
    "method copy": lambda d: d.copy(),
    "deepcopy": lambda d: copy.deepcopy(d),
    "pickle": lambda d: pickle.loads(pickle.dumps(d)),
    "json": lambda d: json.dumps(d, sort_keys=True),
    "pop": lambda d: d.pop("loss"),
    "popitem": lambda d: d.popitem(),
    "setdefault": lambda d: d.setdefault("loss", 1.0),
    "itemgetter": operator.itemgetter("loss", "accuracy"),
    "max": lambda d: max(d, key=d.get),
}


def late(reads):
    """Returns a dict with late values, which adds to a list when they are read."""
    return late_dict(lambda: reads.append("read") or VALUES)


def late_dict(read):
    return LateDict({name: LateValue(name, read) for name in VALUES})


@pytest.mark.parametrize("name", READS)
def test_reads_are_those_of_a_dict(name):
    reads = []
    found, expected = READS[name](late(reads)), READS[name](dict(VALUES))
    assert found == expected and repr(found) == repr(expected)
    assert type(found) is type(expected)
    assert reads == ["read"]


@pytest.mark.parametrize(
    "ask",
    [list, len, bool, "loss".__eq__, lambda d: "loss" in d, lambda d: [*d.keys()]],
)
def test_names_are_known_without_a_read(ask):
    reads = []
    assert ask(late(reads)) == ask(dict(VALUES)) and not reads


def test_a_stored_value_stays():
    reads = []
    some = late(reads)
    some["loss"] = 7.0
    some.update(more=1)
    del some["accuracy"]
    assert not reads and some == {"loss": 7.0, "more": 1} and not reads


def test_a_failed_read_is_tried_again():
    errors = [ValueError("rank 1")]

    def read():
        if errors:
            raise errors.pop()
        return VALUES

    some = late_dict(read)
    with pytest.raises(ValueError, match="rank 1"):
        str(some)
    assert some == VALUES


def test_unread_values_can_be_kept_for_later():
    reads = []
    some = late(reads)
    some["lr"] = 0.1
    kept = some.unread()
    assert type(kept) is dict and kept["lr"] == 0.1 and not reads
    assert isinstance(kept["loss"], LateValue) and float(kept["loss"]) == 2.5


def test_two_that_nobody_has_read_are_compared():
    def late(loss):
        return LateDict(loss=LateValue("loss", lambda: {"loss": loss}))

    assert late(2.5) == late(2.5) and late(2.5) != late(2.0)
    assert operator.ne(late(2.5), late(2.5)) is False
