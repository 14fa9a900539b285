"""Random numbers that a forward draws itself are refused, wherever they lead."""

import random

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import from_chain

X = np.random.RandomState(1).normal(size=(4, 6)).astype(np.float32)


class Net(chainer.Chain):
    def __init__(self, call):
        super().__init__(a=L.Linear(6, 6))
        self._call = call

    def __call__(self, x):
        return self._call(self, x)


def stochastic_depth(self, x):
    if chainer.config.train and np.random.rand() > 0.99:
        return x + self.a(F.tanh(x))
    return x + self.a(x)


@pytest.mark.parametrize(
    "call",
    [
        stochastic_depth,
        lambda self, x: self.a(x) * (np.random.uniform(size=x.shape) < 2),
        lambda self, x: self.a(x) * (1 if random.random() < 0.999 else 2),
    ],
)
def test_a_draw_of_the_forward_is_refused_with_its_line(call):
    before = np.random.rand, random.random
    with pytest.raises(ValueError, match="forward draws random numbers") as caught:
        from_chain(Net(call), X)
    assert "of test_random_draws.py, in " in str(caught.value)
    assert (np.random.rand, random.random) == before


class Noise(chainer.Chain):
    def __call__(self, x):
        return x * np.float32(np.random.rand())


def test_links_and_functions_may_draw_and_tables_have_their_own_numbers():
    def call(self, x):
        table = np.random.RandomState(0).normal(size=6).astype(np.float32)
        return F.dropout(self.noise(self.a(x)), 0.5) + table

    chain = Net(call)
    chain.add_link("noise", Noise())
    model = from_chain(chain, X)
    ys = []
    for each in (chain, model):
        np.random.seed(3)
        ys.append(each(X).array)
    np.testing.assert_allclose(*ys, rtol=1e-6)
