"""A forward that writes weights is refused with its line; a link may write its own."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import from_chain

X = np.random.RandomState(0).rand(3, 6).astype(np.float32)
MASK = (np.arange(6) > 2).astype(np.float32)


class Net(chainer.Chain):
    def __init__(self, call, a=None):
        super().__init__(a=a or L.Linear(6, 6), b=L.Linear(6, 2))
        self._call = call

    def forward(self, x):
        return self._call(self, x)


def scaled(self, x):
    self.a.W.array *= 0.99
    return self.b(self.a(x))


def replaced(self, x):
    self.b.W.data = self.b.W.data / 2
    return self.b(self.a(x))


def masked(self, x):
    self.a.W.array[...] *= MASK
    return self.b(F.relu(self.a(x)))


def afterwards(self, x):
    y = self.b(self.a(x))
    self.a.b.array[0] += 1
    return y


@pytest.mark.parametrize(
    "call, path, line",
    [
        (scaled, "/a/W", "self.a.W.array *= 0.99"),
        (replaced, "/b/W", "self.b.W.data = self.b.W.data / 2"),
        (masked, "/a/W", "return self.b(F.relu(self.a(x)))"),
        (afterwards, "/a/b", ""),
    ],
)
def test_a_change_of_a_weight_is_refused_with_its_line(call, path, line):
    with pytest.raises(ValueError, match=f"changes the parameter {path}, ") as caught:
        from_chain(Net(call), X)
    text = str(caught.value)
    assert text.endswith(line) and len(text.splitlines()) <= 10


class Masked(L.Linear):
    def forward(self, x):
        self.W.array *= MASK
        return super().forward(x)


def test_a_link_may_write_its_own_weights():
    chain = Net(lambda self, x: self.b(self.a(x)), Masked(6, 6))
    model = from_chain(chain, X)
    assert list(model) == [chain.a, chain.b]
    assert not chain.a.W.array[:, :3].any()


def test_reading_weights_in_other_code_is_no_change():
    chain = Net(lambda self, x: self.b(self.a(x)))
    weights = chain.a.W.array.copy()
    from_chain(chain, X)
    np.testing.assert_array_equal(chain.a.W.array, weights)
    chain.a.W.array *= 2
