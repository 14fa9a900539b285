"""Gradients are told of once, complete, before backward ends."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from data_parallel.gradient_watch import GradientWatch
from data_parallel.parameters import parameters_of

X = np.random.RandomState(0).standard_normal((3, 4)).astype("f")


class Net(chainer.Chain):
    def __init__(self):
        np.random.seed(0)
        links = {name: L.Linear(4, 4) for name in "abcd"}
        super().__init__(**links)


def watched(model, loss):
    """Returns names in the order in which they were told, and the gradients then."""
    parameters, told, looks = parameters_of(model), {}, []
    model.cleargrads()

    def complete(i, gradient):
        told[parameters[i].name] = gradient.copy()
        # Chainer gives it to the parameter later.
        assert parameters[i].param.grad is None

    with GradientWatch(loss, parameters, complete, lambda: looks.append(1)):
        loss.backward()
    assert len(looks) >= len(told) / 2
    for name, param in parameters:
        if name in told:
            np.testing.assert_array_equal(told[name], param.grad, name)
    return list(told)


def test_gradients_come_from_the_last_layer_to_the_first():
    model = Net()
    loss = F.sum(model.c(F.relu(model.b(model.a(X)))))
    expected = ["/c/W", "/c/b", "/b/W", "/b/b", "/a/W", "/a/b"]
    assert watched(model, loss) == expected
    assert model.d.W.grad is None


def test_a_parameter_with_several_uses_is_told_of_after_the_last():
    model = Net()
    loss = F.sum(model.a(F.tanh(model.b(F.tanh(model.a(X)))))) + F.sum(model.a.W)
    assert watched(model, loss) == ["/b/W", "/b/b", "/a/W", "/a/b"]


def test_functions_within_functions_do_not_count():
    model = Net()
    loss = F.sum(model.a(F.forget(lambda h: model.b(model.c(h)), model.d(X))))
    told = watched(model, loss)
    assert told == ["/a/W", "/a/b", "/d/W", "/d/b"]
    assert model.b.W.grad is not None


def test_what_no_gradient_reaches_is_not_told_of():
    model = Net()
    h = model.a(X)
    loss = F.sum(model.b(chainer.Variable(h.array))) + F.sum(F.where(X > 9, h, 0 * h))
    assert "/b/W" in watched(model, loss)


def test_parts_that_are_added_up_later_are_left_to_chainer():
    model = Net()
    with chainer.using_config("lazy_grad_sum", True):
        loss = F.sum(model.b(model.a(X))) + F.sum(model.b(X))
        told = watched(model, loss)
    assert "/a/W" in told
    assert model.b.W.grad is not None


def test_backward_is_as_without_a_watch_afterwards():
    model = Net()
    loss = F.sum(model.a(X))
    try:
        with GradientWatch(loss, parameters_of(model), lambda *_: 1 / 0, bool):
            loss.backward()
    except ZeroDivisionError:
        pass
    model.cleargrads()
    loss.backward()
    assert model.a.W.grad is not None
    assert not chainer.get_function_hooks()
