from __future__ import annotations

import chainer
import chainer.links as L
import numpy as np
import pytest

from divisible import from_chain

X = np.random.RandomState(0).rand(3, 4).astype(np.float32)


class Recurrent(chainer.Chain):
    def __init__(self, change):
        super().__init__(a=L.Linear(4, 4), rnn=L.StatefulGRU(4, 4), b=L.Linear(4, 2))
        self._change = change
        self.n, self.h = 0, None

    def forward(self, x, is_counted=False):
        return self.b(self._change(self, self.rnn(self.a(x))))


def resetting(chain, h):
    chain.rnn.reset_state()
    return h


def counting(chain, h):
    chain.n += 1
    return h * float(chain.n)


def annealing(chain, h):
    return counting(chain, h) if chainer.config.train else h


def feeding_back(chain, h):
    h = h if chain.h is None else h + chain.h
    chain.h = h.array
    return h


@pytest.mark.parametrize("change", [resetting, counting, annealing, feeding_back])
def test_what_a_forward_keeps_from_one_call_to_the_next_is_refused(change):
    with pytest.raises(ValueError, match="second call.*keeps a value from one call"):
        from_chain(Recurrent(change), X)


def test_what_a_child_taken_apart_keeps_is_refused():
    chain = chainer.Chain(p=Recurrent(counting))
    with pytest.raises(ValueError, match="second call"):
        from_chain(chain, X, forward=lambda x: chain.p(x, True))
    # A layer keeps it.
    model = from_chain(chain, X, forward=lambda x: chain.p(x))
    same = chain.copy("copy")
    for _ in range(2):
        np.testing.assert_allclose(model(X).array, same.p(X).array, rtol=1e-6)


def test_a_value_that_nothing_reads_and_a_state_of_a_link_are_no_obstacles():
    def keeping(chain, h):
        chain.h = h
        return h

    chain = Recurrent(keeping)
    model = from_chain(chain, X)
    same = chain.copy("copy")
    for _ in range(2):
        np.testing.assert_allclose(model(X).array, same(X).array, rtol=1e-6)
