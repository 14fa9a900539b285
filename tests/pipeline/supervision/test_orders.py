import time

import pytest

from pipeline.supervision.orders import Orders
from pipeline.training import control_files
from pipeline.training.control_files import Progress, Run, Wishes


@pytest.fixture
def folder(tmp_path):
    with control_files.opened(tmp_path / "run") as folder:
        yield folder


def answers(folder, *orders):
    return [control_files.answered(folder, order, 0.2) for order in orders]


def test_orders_to_save_are_answered_when_rank_zero_has_saved(folder):
    orders = Orders(folder, "train.py")
    orders.begin()
    first, second = (control_files.give(folder, "save") for _ in range(2))
    assert orders.taken() == []
    assert control_files.read(folder, Wishes) == Wishes(1, saves=2)
    assert answers(folder, first, second) == [None, None]
    # The progress of an earlier start counts for nothing.
    control_files.write(folder, Progress(0, 9, 1.0, time.time(), 5, "saved before"))
    orders.taken()
    assert not orders.is_obeyed
    control_files.write(folder, Progress(1, 9, 1.0, time.time(), 2, "saved in x"))
    orders.taken()
    assert orders.is_obeyed
    assert answers(folder, first, second) == ["saved in x"] * 2


def test_the_end_of_the_ranks_answers_what_is_open(folder):
    orders = Orders(folder, "train.py")
    orders.begin()
    save, stop = control_files.give(folder, "save"), control_files.give(folder, "stop")
    orders.taken()
    assert orders.stops and control_files.read(folder, Wishes).stop
    control_files.write(folder, Progress(1, 9, 1.0, time.time(), 0, "saved in x"))
    orders.end("it was stopped")
    assert answers(folder, save, stop) == [
        "nothing was saved, for the ranks have ended: it was stopped",
        "it was stopped; saved in x",
    ]
    orders.begin()
    assert control_files.read(folder, Wishes) == Wishes(2)
    assert control_files.read(folder, Progress) is None


def test_an_order_to_save_between_two_starts_is_for_the_next(folder):
    orders = Orders(folder, "train.py")
    orders.begin()
    early = control_files.give(folder, "save")
    orders.taken()
    orders.end("rank 1 was killed")
    assert "nothing was saved" in answers(folder, early)[0]
    late = control_files.give(folder, "save")
    orders.taken()
    orders.begin()
    assert control_files.read(folder, Wishes) == Wishes(2, saves=1)
    control_files.write(folder, Progress(2, 9, 1.0, time.time(), 1, "saved in x"))
    orders.taken()
    assert answers(folder, late) == ["saved in x"]


def test_growing_is_for_the_supervisor_and_other_words_for_nobody(folder):
    orders = Orders(folder, "train.py")
    orders.begin()
    grow, other = control_files.give(folder, "grow"), control_files.give(folder, "go")
    assert orders.taken() == [grow]
    assert answers(folder, other) == ["the run knows no order 'go'"]


def test_the_state_can_be_read(folder):
    orders = Orders(folder, "train.py --epoch 3")
    orders.begin()
    orders.describe("2 ranks", "runs", 4, "rank 1 was killed")
    run = control_files.read(folder, Run)
    assert run.script == "train.py --epoch 3" and run[3:] == (
        "2 ranks",
        "runs",
        1,
        4,
        "rank 1 was killed",
    )
