"""The last part of each gradient is told of, once, while backward goes on."""

import doctest

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.backward import completion
from divisible.backward.backprop import backward, backward_input
from divisible.backward.completion import Completion
from divisible.backward.weight_gradients import WeightGradients


@given(st.lists(st.integers(0, 3), max_size=12), st.sets(st.integers(0, 3)))
def test_each_is_told_of_with_its_last_part(parts, left_out):
    params = [chainer.Parameter(name=str(i)) for i in range(4)]
    told = []
    counts = Completion(lambda param: told.append(int(param.name)))
    counts.leave_out(params[i] for i in left_out)
    counts.expect(params[i] for i in parts)
    expected = []
    for place, i in enumerate(parts):
        counts.add(params[i])
        if i not in parts[place + 1 :] and i not in left_out:
            expected.append(i)
        assert told == expected


class Net(chainer.Chain):
    """A weight used twice, once through a function of it, and one that is not used."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.a, self.b = L.Linear(3, 3), L.Linear(3, 2)
            self.norm, self.unused = L.BatchNormalization(3), L.Linear(3, 3)

    def forward(self, x):
        x = self.norm(F.tanh(self.a(x)))
        F.sum(self.unused(x))
        return self.b(F.linear(x, F.transpose(self.a.W)))


@pytest.mark.parametrize("is_split", [False, True])
def test_what_is_told_of_is_complete(is_split):
    net = Net()
    gradients = WeightGradients(net.params)
    names = {id(param): name for name, param in net.namedparams()}
    found = {}

    def complete(param):
        found[names[id(param)]] = gradients.take(param).copy()

    gradients.begin()
    for i in range(2):
        x = chainer.Variable(np.full((4, 3), 1 + i, "f"))
        arguments = [x], [net(x)], [np.ones((4, 2), "f")], gradients
        if is_split:
            _, pending = backward_input(*arguments)
        if i:
            gradients.completion = Completion(complete)
        if is_split:
            pending.run()
        else:
            backward(*arguments)
    taken = set(found)
    expected = ["/b/W", "/b/b", "/a/b", "/a/W"]
    if not is_split:
        # That of a batch normalization is no matter of weights alone.
        expected += ["/norm/gamma", "/norm/beta"]
    assert taken == set(expected)
    gradients.finish()
    assert all(param.grad is None for n, param in net.namedparams() if n in taken)
    assert net.unused.W.grad is None
    again = WeightGradients(net.params)
    again.begin()
    for i in range(2):
        x = chainer.Variable(np.full((4, 3), 1 + i, "f"))
        backward([x], [net(x)], [np.ones((4, 2), "f")], again)
    again.finish()
    for name, param in net.namedparams():
        if name in taken:
            np.testing.assert_array_equal(found[name], param.grad)


def test_the_examples_run():
    assert doctest.testmod(completion).failed == 0
