"""Arrays that a forward makes of sizes become layers, or are refused."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import from_chain
from divisible.chains.constants import ConstantLayer

ROWS = np.random.RandomState(0).normal(size=(9, 6)).astype(np.float32)
X = np.random.RandomState(1).normal(size=(4, 5, 6)).astype(np.float32)


class Net(chainer.Chain):
    def __init__(self, call):
        super().__init__(a=L.Linear(6, 6))
        self._call = call

    def __call__(self, x):
        h = self.a(x, n_batch_axes=2) if self._call is None else self._call(self, x)
        return F.sum(h, axis=1)


class Wide(L.Linear):
    def __call__(self, x):
        return self.forward(x, n_batch_axes=2)


def build(call):
    chain = Net(call)
    chain.a.__class__ = Wide
    return chain


CONSTANTS = {
    "zeros": lambda self, x: self.a(x) + self.xp.zeros(x.shape, np.float32),
    "ones of a link's input": lambda self, x: (
        self.a(self.xp.ones(x.shape, np.float32)) + x
    ),
    "a table": lambda self, x: self.a(x) * np.arange(6, dtype=np.float32),
    "positions": lambda self, x: (
        self.a(x) * self.xp.arange(x.shape[1], dtype=np.float32)[None, :, None]
    ),
    "a triangle": lambda self, x: F.matmul(
        self.xp.broadcast_to(
            np.tril(np.ones((x.shape[1],) * 2, np.float32)),
            (len(x), x.shape[1], x.shape[1]),
        ),
        self.a(x),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_follows_the_sizes(name):
    chain = build(CONSTANTS[name])
    model = from_chain(chain, X)
    for x in (X[:2], np.resize(X, (3, 9, 6))):
        np.testing.assert_allclose(model(x).array, chain(x).array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((3, 5), np.int32),
        np.full((3, 5), 8, np.int32),
        np.arange(5, dtype=np.int32)[None],
        np.zeros((3, 5), bool),
        np.ones((2, 5), np.float32),
    ],
)
def test_rows_of_a_table_are_no_constant_of_equal_samples(x):
    class Rows(chainer.Chain):
        def __init__(self):
            super().__init__(a=L.Linear(6, 6))

        def __call__(self, x):
            return self.a(F.sum(chainer.Variable(ROWS[np.int32(x)]), axis=1))

    with pytest.raises(ValueError, match="neither the input .* and no constant"):
        from_chain(Rows(), x)


def test_a_minibatch_beyond_the_example_is_refused():
    chain = build(CONSTANTS["positions"])
    model = from_chain(chain, X)
    # The chain was recorded with 5, 6 and 11 positions.
    with pytest.raises(ValueError, match="known for 11 along axis 1, .* needs 12"):
        model(np.resize(X, (3, 12, 6)))


@pytest.mark.parametrize(
    "call",
    [
        # Positions among the samples, which a microbatch does not have.
        lambda self, x: self.a(x) * self.xp.arange(len(x), dtype="f")[:, None, None],
        lambda self, x: self.a(x) * np.full((1, 1, 1), 1 / x.shape[1], np.float32),
        lambda self, x: self.a(x) * np.linspace(0, 1, x.shape[1], dtype="f")[:, None],
    ],
)
def test_what_follows_in_no_known_way_is_refused(call):
    def broadcast(self, x):
        return call(self, x)

    with pytest.raises(ValueError, match="neither the input .* and no constant"):
        from_chain(build(broadcast), X)


def test_a_table_that_is_changed_in_place_is_followed():
    table = np.arange(6, dtype=np.float32)
    chain = build(lambda self, x: self.a(x) * table)
    model = from_chain(chain, X)
    table[...] = 3
    np.testing.assert_array_equal(model(X).array, chain(X).array)


def test_a_text_has_a_checksum():
    one, other = ConstantLayer(np.zeros(2), {}), ConstantLayer(np.ones(2), {})
    assert str(one) != str(other) and "float64, (2,)" in str(one)


def last_words(self, x):
    known = (x[:, :, 0] > -1).sum(axis=1)
    h = self.a(x)
    return self.a(h[self.xp.arange(len(x)), known - 1][:, None])


def test_positions_of_samples_choose_one_element_of_each():
    chain, x = build(last_words), X.copy()
    x[1, 3:] = x[2, 1:] = -2
    model = from_chain(chain, x)
    longer = np.concatenate([x, x[::-1], x])
    for each in (x[:1], longer):
        np.testing.assert_array_equal(model(each).array, chain(each).array)


def test_positions_of_samples_that_are_numbers_are_refused():
    def numbered(self, x):
        return self.a(x) * self.xp.arange(len(x), dtype=np.float32)[:, None, None]

    def chosen_and_added(self, x):
        positions = self.xp.arange(len(x))
        h = self.a(x)
        return h + (h[positions, 0] * positions[:, None])[:, None]

    for call in (numbered, chosen_and_added):
        with pytest.raises(ValueError, match="no constant"):
            from_chain(build(call), X)
