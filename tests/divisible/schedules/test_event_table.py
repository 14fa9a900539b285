"""Columns become events, and their sums the times of ranks."""

import numpy as np
import pytest

from divisible.schedules.actions import Action, Transfer
from divisible.schedules.event_table import COLUMNS, NONE, EventTable
from divisible.schedules.events import CATEGORIES, SEND, UPDATE


def columns(**given):
    """Returns columns of two ranks: 0F0 of 2 s, a message of 1 s, 1F0 of 1 s."""
    forward = CATEGORIES.index("F")
    found = {name: [NONE] * 3 for name in COLUMNS}
    found.update(
        rank=[0, 0, 1],
        category=[forward, SEND, forward],
        stage=[0, 0, 1],
        kind=[0, 0, 0],
        microbatch=[0, 0, 0],
        count=[1, 1, 1],
        peer=[NONE, 1, NONE],
        direction=[NONE, 0, NONE],
        start=[0, 2, 3],
        end=[2, 3, 4],
    )
    return {**found, **given}


def test_events_are_made_of_columns():
    table = EventTable(columns())
    assert (len(table), table.n_ranks, table.offsets.tolist()) == (3, 2, [0, 2, 3])
    assert [event.what for event in table] == [
        Action(0, "F", 0),
        Transfer(Action(0, "F", 0), 1, "send"),
        Action(1, "F", 0),
    ]
    assert table.rank_events(1) == [(1, Action(1, "F", 0), 3.0, 4.0, "F")]


def test_times_of_ranks_are_sums_of_columns():
    table = EventTable(columns(), n_ranks=3)
    assert table.makespan == 4
    np.testing.assert_array_equal(table.busy, [2, 1, 0])
    np.testing.assert_array_equal(table.bubble_time, [2, 3, 4])
    np.testing.assert_array_equal(table.bubble, [0.5, 0.75, 1])


def test_an_update_is_neither_computing_nor_a_bubble():
    nothing = {"stage": [0, NONE, 1], "kind": [0, NONE, 0], "peer": [NONE] * 3}
    forward, _, _ = columns()["category"]
    table = EventTable(columns(category=[forward, UPDATE, forward], **nothing))
    np.testing.assert_array_equal(table.busy, [2, 1])
    np.testing.assert_array_equal(table.updating, [1, 0])
    np.testing.assert_array_equal(table.bubble_time, [1, 3])
    assert table[1] == (0, "update", 2.0, 3.0, "update")


def test_rows_are_sorted_by_rank_and_start():
    there = EventTable(columns())
    turned = {name: values[::-1] for name, values in columns().items()}
    assert list(EventTable(turned)) == list(there)


def test_texts_are_labels():
    found = EventTable(
        columns(kind=[NONE] * 3, label=[0, NONE, 0]), labels=["move of layers"]
    )
    texts = [event.what for event in found]
    assert texts == ["move of layers", "send", "move of layers"]


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"end": [2, 3, 2]}, "event 2 on rank 1 of 2 runs from 3.0 to 2.0 s"),
        ({"rank": [0, -1, 1]}, "event 1 on rank -1 of 2 runs"),
        ({"start": [0, np.nan, 3]}, "event 1 on rank 0 of 2 runs from nan"),
    ],
)
def test_rows_without_a_rank_or_a_length_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        EventTable(columns(**wrong))
