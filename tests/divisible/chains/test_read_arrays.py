"""Arrays of variables, which a forward reads and computes with."""

import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import from_chain

X = np.random.RandomState(1).normal(size=(4, 6)).astype(np.float32)


class Net(chainer.Chain):
    def __init__(self, call):
        super().__init__(a=L.Linear(6, 6), b=L.Linear(6, 6))
        self._call = call

    def __call__(self, x):
        return self.b(self._call(self, x))


def kept(self, x):
    h = self.a(x)
    return h * (abs(h.data) < 10)


def rounded(self, x):
    h = self.a(x)
    return h + (np.round(h.array) - h.array)


def chosen(self, x):
    h = F.relu(self.a(x))
    return F.where(h.array >= 5, h * 2, h)


def cut(self, x):
    h = self.a(x)
    zeros = self.xp.zeros(h.data.shape, h.array.dtype)
    return F.tanh(h) + chainer.Variable(h.array) + zeros


@pytest.mark.parametrize("call", [kept, rounded, chosen, cut])
def test_layers_read_arrays_as_the_chain_does(call):
    chain = Net(call)
    model = from_chain(chain, X)
    for x in (X, 1000 * X[:3]):
        gradients = []
        for each in (chain, model):
            chain.cleargrads()
            y = each(x)
            F.sum(y * y).backward()
            found = sorted(chain.namedparams())
            gradients.append([y.array] + [p.grad for _, p in found])
        for own, expected in zip(*gradients):
            np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "call",
    [
        lambda self, x: self.a(x) / max(1.0, np.linalg.norm(self.a(x).array) / 99),
        lambda self, x: self.a(x) * (1 if self.a(x).data.max() < 99 else 2),
    ],
)
def test_a_number_of_an_array_is_refused(call):
    with pytest.raises(ValueError, match="forward makes a number of values"):
        from_chain(Net(call), X)


def test_chainer_and_other_threads_read_plain_arrays():
    types = []

    def forward(self, x):
        h = self.a(x)
        reader = threading.Thread(target=lambda: types.append(type(h.array)))
        reader.start()
        reader.join()
        types.append(type(chainer.as_array(h)))
        types.append(type(self.a.W.array))
        return h

    before = chainer.Variable.array, chainer.Variable.data
    from_chain(Net(forward), X)
    assert set(types) == {np.ndarray}
    assert (chainer.Variable.array, chainer.Variable.data) == before
