"""What a stage knows of the model that it was cut from."""

import copy
import gc
import pickle

import chainer
import chainer.links as L
from hypothesis import given
from hypothesis import strategies as st

from divisible import Divisible
from divisible.ties import Tie
from divisible.undivided import Elsewhere, Undivided


def linears(n):
    return Divisible(*(L.Linear(2, 2) for _ in range(n)))


def test_a_stage_knows_parameters_elsewhere_while_others_have_them():
    model = linears(3)
    first, last = model[0].W, model[2].W
    stage = model.divide(1, 2)
    del model
    gc.collect()
    assert stage.path_elsewhere(first) == "/0/W"
    assert stage.path_elsewhere(last) == "/2/W"
    assert stage.path_elsewhere(stage[0].W) is None
    assert stage._undivided.elsewhere.params().keys() == {"/0/W", "/2/W"}


def test_a_model_has_no_parameters_elsewhere():
    model = linears(2)
    assert model.path_elsewhere(chainer.Parameter()) is None
    assert model.view(0, 1).path_elsewhere(model[1].W) is None


def test_a_copied_stage_knows_the_very_parameters_elsewhere():
    model = linears(2)
    for stage in (copy.deepcopy(model.divide(0, 1)), model.divide(0, 1, mode="copy")):
        assert stage.path_elsewhere(model[1].W) == "/1/W"


def test_a_view_of_a_stage_knows_what_the_stage_knows():
    model = linears(3)
    view = model.divide(1, 3).view(1, 2)
    assert view.path_elsewhere(model[0].W) == "/0/W"
    assert view.model_layers == model.model_layers


def test_a_stage_in_a_file_knows_no_parameters_elsewhere():
    model = linears(2)
    stage = pickle.loads(pickle.dumps(model.divide(0, 1)))
    assert stage.path_elsewhere(model[1].W) is None
    assert stage.model_layers == model.model_layers


ties = st.lists(
    st.lists(st.integers(0, 6), min_size=2, max_size=4, unique=True).map(
        lambda positions: Tie("/0/W", tuple(sorted(positions)))
    )
)


@given(ties, st.integers(0, 5), st.integers(1, 6))
def test_ties_before_reach_into_the_layers(ties, start, n):
    undivided = Undivided((), (), tuple(ties), (), ())
    own = set(range(start, start + n))
    found = undivided.ties_before(start, start + n)
    for tie in ties:
        is_before = any(position < start for position in tie.positions)
        assert (tie in found) == (is_before and not own.isdisjoint(tie.positions))


def test_what_a_stage_has_is_not_elsewhere():
    link, other = L.Linear(2, 2), chainer.Parameter()
    undivided = Undivided((), (), (), (), ())
    params = {"/0/W": link.W, "/1/W": other}
    assert undivided.seen_from(link, params).elsewhere.params() == {"/1/W": other}
    assert undivided.elsewhere.params() == Elsewhere({}).params() == {}
