"""Where ranks with different extensions share what was reported."""

import pytest

from pipeline.training.sharing_place import SharedEntry, find_place

EPOCH = "every epoch"


def reporter(name, when=EPOCH, priority=300):
    return SharedEntry(name, priority, "reporter", False, when)


def other(name, priority=100, is_collective=False):
    return SharedEntry(name, priority, "", is_collective, EPOCH)


LOG, PLOT = (
    SharedEntry(name, 100, "consumer", False, EPOCH) for name in ("log", "plot")
)
EVALUATE, SAVE = other("evaluate", 300, True), other("save", -100, True)
STATS, LAST = reporter("stats"), other("last", -1e6)


@pytest.mark.parametrize(
    ("said", "positions"),
    [
        # Before what reads first, on all.
        ([[STATS, EVALUATE, LOG, PLOT, LAST]] * 2, [2, 2]),
        # Which may be on one rank only.
        ([[EVALUATE, LOG, SAVE, LAST], [EVALUATE, STATS, SAVE, LAST]], [1, 2]),
        ([[EVALUATE, STATS, SAVE, LAST], [EVALUATE, LOG, SAVE, LAST]], [2, 1]),
        ([[STATS, LOG, LAST], [LAST]], [1, 0]),
        # What is collective is on the same side of it everywhere.
        ([[EVALUATE, LOG, PLOT, LAST], [PLOT, EVALUATE, LAST]], [1, 2]),
        # Nobody that is known reads: before the first of a reader's priority.
        ([[STATS, other("mine"), SAVE, LAST]] * 2, [1, 1]),
        ([[STATS, EVALUATE, LAST]] * 2, [2, 2]),
    ],
)
def test_the_place_is_the_same_among_collective_extensions(said, positions):
    place = find_place(said)
    assert place.positions == positions
    collective = [
        [entry.name for entry in entries[:position] if entry.is_collective]
        for entries, position in zip(said, positions)
    ]
    assert collective[0] == collective[1]


@pytest.mark.parametrize(
    ("first", "second", "are_any", "are_alike"),
    [
        ([], [], False, True),
        ([STATS], [STATS], True, True),
        ([STATS], [], True, False),
        ([STATS], [reporter("stats", "every iteration")], True, False),
        ([reporter("clock", None)], [reporter("clock", None)], True, False),
        ([other("shift", 200)], [], False, True),
    ],
)
def test_ranks_with_the_same_reporters_need_not_ask(first, second, are_any, are_alike):
    place = find_place([[*first, LOG, LAST], [*second, LOG, LAST]])
    assert place[1:] == (are_any, are_alike)


def test_what_comes_later_does_not_count():
    place = find_place([[LOG, reporter("late", priority=100), LAST]] * 2)
    assert place == ([0, 0], False, True)
