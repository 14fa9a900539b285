"""Copies of traced arrays, by functions that NumPy does not dispatch."""

import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import from_chain

WORDS = np.random.RandomState(0).randint(0, 9, (4, 5)).astype(np.int32)


class Net(chainer.Chain):
    def __init__(self, call):
        super().__init__(e=L.EmbedID(9, 6, ignore_label=-1), a=L.Linear(6, 6))
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


@pytest.mark.parametrize("call", [copied, same, of_several])
def test_a_copy_of_an_array_is_a_layer(call):
    chain = Net(call)
    model = from_chain(chain, WORDS)
    for x in (WORDS, WORDS[:2] - 3, np.resize(WORDS, (3, 9))):
        np.testing.assert_allclose(
            model(np.maximum(x, -1)).array, chain(np.maximum(x, -1)).array, rtol=1e-5
        )


def test_functions_are_those_of_numpy_afterwards_and_in_other_threads():
    found = []

    def call(self, x):
        thread = threading.Thread(target=lambda: found.append(np.array(x)))
        thread.start()
        thread.join()
        return F.sum(self.e(x), axis=1)

    before = np.array, np.asarray
    from_chain(Net(call), WORDS)
    assert (np.array, np.asarray) == before
    assert {type(each) for each in found} == {np.ndarray}
