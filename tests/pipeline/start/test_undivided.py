"""Stages of undivided models."""

import chainer.functions as F
import chainer.links as L
import pytest

from divisible import Divisible, Plan, deferred_init
from divisible.schedules import create
from divisible.streaming import StoreError, Streamed
from pipeline.start.plans import Given, put_together
from pipeline.start.undivided import (
    are_deferred,
    check_undivided,
    divided,
    equal_stages,
    is_as_it_is,
)


def model():
    return Divisible(L.Linear(3, 3), F.relu, L.Linear(3, 3))


def deferred():
    with deferred_init():
        return model()


def test_what_is_deferred():
    assert are_deferred(deferred()) and not are_deferred(model())
    assert not are_deferred(deferred().divide())
    with deferred_init():
        unsized = Divisible(L.Linear(None, 3))
    assert are_deferred(unsized) and not are_deferred(unsized.divide())


@pytest.mark.parametrize(
    "given, error, message",
    [
        ([model()], TypeError, "a list of stages, but a plan is for the undivided"),
        (model().divide(0, 2), ValueError, "a stage with the layers 0 to 1, but a"),
        (F.relu, TypeError, "model must be a Divisible, not function"),
    ],
)
def test_what_a_plan_cannot_cut(given, error, message):
    with pytest.raises(error, match=message):
        check_undivided(given)


@pytest.mark.parametrize(
    "schedule, n_ranks, cuts, stage_ranks",
    [
        ("1f1b", 2, [0, 2, 3], (0, 1)),
        ("auto", 3, [0, 1, 2, 3], (0, 1, 2)),
        ("interleaved", 1, [0, 2, 3], (0, 0)),
        (create("zb_v", 2, 2), 1, [0, 2, 3], (0, 0)),
    ],
)
def test_equal_stages(schedule, n_ranks, cuts, stage_ranks):
    found = equal_stages(model(), schedule, n_ranks)
    assert (found.plan.cuts, found.stage_ranks) == (cuts, stage_ranks)


def test_too_few_layers():
    with pytest.raises(ValueError, match="3 layers cannot be cut into 4 stages"):
        equal_stages(model(), "zb_v", 2)


def test_a_model_is_its_only_stage():
    """And stays the object that an optimizer may have been set up with."""
    assert is_as_it_is(model(), equal_stages(model(), "1f1b", 1))
    assert not is_as_it_is(deferred(), equal_stages(model(), "1f1b", 1))
    assert not is_as_it_is(model(), equal_stages(model(), "1f1b", 2))


def test_streamed_layers():
    found = put_together(Plan([0, 1, 3], 2, "1f1b", streamed=[2]), Given())
    (stage,) = divided(deferred(), found, 1, None)
    assert [isinstance(layer, Streamed) for layer in stage] == [False, True]
    with pytest.raises(StoreError, match="in memory already"):
        divided(model(), found, 1, None)
