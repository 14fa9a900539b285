"""Forwards that return dictionaries and lists, as nets with several heads do."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import from_chain
from divisible.chains.calls import ChainError
from pipeline import Pipeline

X = np.random.RandomState(0).rand(4, 6).astype(np.float32)
T = np.array([0, 1, 2, 0], np.int32)


class Heads(chainer.Chain):
    """Two heads on one layer; ``form`` arranges what they return."""

    def __init__(self, form):
        super().__init__(body=L.Linear(6, 5), one=L.Linear(5, 3), two=L.Linear(5, 2))
        self.form = form

    def forward(self, x):
        h = F.relu(self.body(x))
        return self.form(self.one(h), self.two(h))


@pytest.mark.parametrize(
    "form, order",
    [
        (lambda one, two: {"scores": one, "size": two}, "12"),
        (lambda one, two: [{"size": two, "scores": one}], "21"),
        (lambda one, two: (two, {"scores": one}), "21"),
        (lambda one, two: [one, two], "12"),
    ],
)
def test_outputs_come_in_their_order(form, order):
    heads = Heads(form)
    h = F.relu(heads.body(X))
    outputs = {"1": heads.one(h), "2": heads.two(h)}
    found = from_chain(heads, X)(X)
    assert len(found) == 2
    for number, y in zip(order, found):
        np.testing.assert_array_equal(y.array, outputs[number].array)


def test_a_list_of_one_output_is_this_output():
    heads = Heads(lambda one, two: [F.concat([one, two])])
    np.testing.assert_array_equal(from_chain(heads, X)(X).array, heads(X)[0].array)


def loss_of(scores, size, t):
    return F.softmax_cross_entropy(scores, t) + F.mean(size * size)


def test_a_loss_gets_the_values_of_a_dictionary():
    heads = Heads(lambda one, two: {"scores": one, "size": two})
    model = from_chain(heads, X)
    loss = loss_of(*heads(X).values(), T)
    heads.cleargrads()
    loss.backward()
    expected = {path: p.grad.copy() for path, p in heads.namedparams()}
    options = {"n_microbatches": 2, "lossfun": loss_of, "accfun": None}
    with Pipeline(model, MPI.COMM_SELF, **options) as pipe:
        found = pipe.step(X, T)["loss"]
    assert found == pytest.approx(float(loss.array), rel=1e-5)
    for path, param in heads.namedparams():
        np.testing.assert_allclose(param.grad, expected[path], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "form, words",
    [
        (lambda one, two: {}, "forward returns a dict, "),
        (lambda one, two: {"scores": one, "n": 3}, "a dict with a int in it"),
        (lambda one, two: [[one], two], "a list with a list in it"),
    ],
)
def test_other_outputs_are_refused(form, words):
    with pytest.raises(ChainError, match=words):
        from_chain(Heads(form), X)
