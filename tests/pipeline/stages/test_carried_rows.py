"""Rows of declared states: given to microbatches, taken from them, put together."""

import chainer
import numpy as np
import pytest

from divisible import Divisible, carry_state
from pipeline.stages.carried_rows import CarriedRows


class Counter(chainer.Link):
    """Adds 1 to the state of each sample; with the samples along an axis of it."""

    def __init__(self, axis=0):
        super().__init__()
        self.axis, self.count = axis, None
        carry_state(self, "count", axis)

    def forward(self, x):
        shape = (1,) * self.axis + (len(x),)
        before = 0 if self.count is None else self.count.array
        self.count = np.zeros(shape, "f") + before + 1
        return x


def minibatch(rows, link, sizes, trains=True):
    rows.begin(trains)
    for number, n in enumerate(sizes):
        with rows.carried(number, n):
            link(np.zeros((n, 2), "f"))
    if trains:
        rows.finish()


@pytest.fixture(params=[0, 1])
def link(request):
    return Counter(request.param)


@pytest.fixture
def rows(link):
    return CarriedRows(Divisible(link))


def test_microbatches_may_be_cut_otherwise_than_before(link, rows):
    for sizes, wanted in (
        ([2, 3], [1, 1, 1, 1, 1]),
        ([1, 1, 1], [2, 2, 2, 1, 1]),
        ([5], [3, 3, 3, 2, 2]),
    ):
        minibatch(rows, link, sizes)
        assert link.carried_count.ravel().tolist() == wanted
        # Nothing is left where the next forward would find it.
        assert link.count is None


def test_a_forward_that_runs_again_begins_from_the_same_and_leaves_none(link, rows):
    minibatch(rows, link, [2, 2])
    rows.begin(True)
    with rows.carried(0, 2):
        link(np.zeros((2, 2), "f"))
    with rows.again(0):
        assert link.count.array.ravel().tolist() == [1, 1]
        link(np.zeros((2, 2), "f"))
    assert link.count is None
    with rows.carried(1, 2):
        link(np.zeros((2, 2), "f"))
    rows.finish()
    assert link.carried_count.ravel().tolist() == [2, 2, 2, 2]


def test_evaluations_go_on_until_a_step(link, rows):
    minibatch(rows, link, [4])
    seen = []
    for trains in (False, False, True, False):
        rows.begin(trains)
        with rows.carried(0, 4):
            seen.append(None if link.count is None else link.count.array.max())
            link(np.zeros((4, 2), "f"))
        if trains:
            rows.finish()
    assert seen == [None, 1, 1, None]
    assert link.carried_count.max() == 2
    rows.reset(of_training=True)
    assert link.carried_count is None


def test_what_cannot_be_carried_is_refused(link, rows):
    minibatch(rows, link, [2])
    with pytest.raises(ValueError, match="^/0.count is the state of 2 samples, and"):
        minibatch(rows, link, [1, 2])
    rows.begin(True)
    wrong = pytest.raises(ValueError, match="after a microbatch of 2 samples: declare")
    with wrong, rows.carried(0, 2):
        link.count = np.zeros((7, 7), "f")
    rows.reset(of_training=True)
    rows.begin(True)
    with rows.carried(1, 1):
        link(np.zeros((1, 2), "f"))
    late = pytest.raises(RuntimeError, match="microbatch 0 comes after 1")
    with late, rows.carried(0, 1):
        pass


def test_a_state_of_some_microbatches_is_refused(link, rows):
    rows.begin(True)
    with rows.carried(0, 1):
        link(np.zeros((1, 2), "f"))
    with rows.carried(1, 1):
        pass
    with pytest.raises(ValueError, match="left by some microbatches and not by others"):
        rows.finish()


def test_the_fewest_samples_are_those_of_the_state_to_go_on_from(link, rows):
    assert rows.fewest(trains=True) is None
    minibatch(rows, link, [2, 3])
    assert rows.fewest(trains=True) == (5, "/0")
    # An evaluation begins anew after training, and goes on from the one before.
    assert rows.fewest(trains=False) is None
    minibatch(rows, link, [2, 1], trains=False)
    assert rows.fewest(trains=False) == (3, "/0")
    assert rows.fewest(trains=True) == (5, "/0")
    rows.reset(of_training=True)
    assert rows.fewest(trains=True) is None


def test_samples_are_those_of_x_where_a_stage_has_two_rows_for_each():
    link = Counter()
    rows = CarriedRows(Divisible(abs, link).divide(1, 2))
    minibatch(rows, link, [4, 2])
    # What came before the layers there put together, only a whole call shows.
    assert rows.fewest(trains=True) is None
    # Unless it is known from when other stages had them, or another run.
    assert rows.fewest(trains=True, n_trained=3) == (3, "/1")
    assert rows.fewest(trains=False, n_trained=3) is None
    rows.begin(True)
    with rows.carried(0, 4):
        link(np.zeros((4, 2), "f"))
    rows.saw(2)
    rows.finish()
    assert rows.fewest(trains=True, n_trained=2) == (3, "/1")


def test_what_is_declared_once_the_model_is_cut_is_not_told():
    link = Counter()
    del link.__dict__["carried_states"]
    stage = Divisible(link, abs).divide(0, 1)
    carry_state(link, "count")
    rows = CarriedRows(stage)
    minibatch(rows, link, [2, 3])
    assert rows.fewest(trains=True) is None
