"""Copies of traced arrays, and arrays of sizes that inputs change."""

import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import from_chain
from divisible.chains.constants import ConstantLayer

WORDS = np.random.RandomState(0).randint(0, 9, (4, 5)).astype(np.int32)


class Net(chainer.Chain):
    def __init__(self, call):
        super().__init__(e=L.EmbedID(9, 6), a=L.Linear(6, 6))
        self._call = call

    def __call__(self, x):
        return self.a(self._call(self, x))


def copied(self, x):
    mask = np.array(x >= 0, dtype=np.float32)
    return F.sum(self.e(x) * mask[:, :, None], axis=1)


def same(self, x):
    known = np.asarray(x) >= 0
    weights = np.ascontiguousarray(np.asanyarray(known).T, dtype=np.float32)
    return F.sum(self.e(x) * weights.T[:, :, None], axis=1)


def of_several(self, x):
    low, high = np.array([x[:, 0] < 9, x[:, 1] < 9], np.float32)
    return F.sum(self.e(x), axis=1) * (low * high)[:, None]


def masked(self, x):
    mask = self.xp.ones(x.shape).astype(np.float32)
    mask[x < 0] = 0
    return F.sum(self.e(x) * mask[:, :, None], axis=1)


def multiplied(self, x):
    mask = np.ones(x.shape, np.float32)
    mask *= x >= 0
    return F.sum(self.e(x) * mask[:, :, None], axis=1)


def shifted(self, x):
    before = np.full(x.shape, -1, x.dtype)
    before[:, 1:] = x[:, :-1]
    weights = np.arange(x.shape[1], dtype=np.float32)
    return F.sum(self.e(before) * weights[:, None], axis=1)


def chosen(self, x):
    return F.sum(self.e(x) * np.eye(9, 6, dtype=np.float32)[x], axis=1)


CALLS = [copied, same, of_several, masked, multiplied, shifted, chosen]


@pytest.mark.parametrize("call", CALLS)
def test_a_copy_of_an_array_is_a_layer(call):
    chain = Net(call)
    model = from_chain(chain, WORDS)
    for x in (WORDS, np.maximum(WORDS[:2] - 3, -1), np.resize(WORDS, (3, 9))):
        y, expected = model(x).array, chain(x).array
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_layers_keep_plain_arrays():
    model = from_chain(Net(shifted), WORDS)
    constants = [each._array for each in model if isinstance(each, ConstantLayer)]
    assert constants and {type(each) for each in constants} == {np.ndarray}


def test_a_part_of_an_array_of_sizes_is_not_changed_unseen():
    def call(self, x):
        mask = np.ones(x.shape, np.float32)
        first = mask[:, 0]
        first[x[:, 0] < 0] = 0
        return F.sum(self.e(x) * mask[:, :, None], axis=1)

    with pytest.raises(ValueError, match="a change in place of another one"):
        from_chain(Net(call), WORDS)


def test_functions_are_those_of_numpy_afterwards_and_in_other_threads():
    found = []

    def call(self, x):
        thread = threading.Thread(target=lambda: found.append(np.array(x)))
        thread.start()
        thread.join()
        return F.sum(self.e(x), axis=1)

    before = np.array, np.asarray, np.zeros
    from_chain(Net(call), WORDS)
    assert (np.array, np.asarray, np.zeros) == before
    assert {type(each) for each in found} == {np.ndarray}
