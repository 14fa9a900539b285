"""Links that define __call__ count as links that are called, as those with forward."""

import contextlib
import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.utils import type_check

from divisible import from_chain

X = np.random.RandomState(0).normal(size=(3, 5, 4)).astype(np.float32)


def chain_of(call_name, **links):
    """Returns a chain that calls its links one after the other."""

    class Net(chainer.Chain):
        def __init__(self):
            super().__init__(**links)

    def call(self, x):
        for name in links:
            x = self[name](x)
        return x

    setattr(Net, call_name, call)
    return Net()


class Gained(L.Linear):
    def __call__(self, x):
        return super().__call__(x) * 2


class TwiceGained(Gained):
    def __call__(self, x):
        return F.relu(super().__call__(x))


class Linear3D(L.Linear):
    def __call__(self, x):
        n, t, d = x.shape
        return F.reshape(super().__call__(F.reshape(x, (n * t, d))), (n, t, -1))


class Scale(chainer.Link):
    def __init__(self, n):
        super().__init__()
        with self.init_scope():
            self.s = chainer.Parameter(np.arange(1, n + 1, dtype="f"))

    def __call__(self, x):
        return x * F.broadcast_to(self.s, x.shape)


class Pair(chainer.Chain):
    def __init__(self, second):
        super().__init__(first=Linear3D(4, 4), second=second)

    def __call__(self, x):
        return self.second(F.tanh(self.first(x))) + x


@pytest.mark.parametrize("call_name", ["forward", "__call__"])
def test_each_link_is_one_layer_and_the_very_same(call_name):
    chain = chain_of(call_name, a=Linear3D(4, 4), b=Scale(4), c=Pair(Scale(4)))
    model = from_chain(chain, X)
    assert list(model) == [chain.a, chain.b, chain.c]
    np.testing.assert_array_equal(model(X).array, chain(X).array)


@pytest.mark.parametrize("kind", [Gained, TwiceGained])
def test_a_call_of_the_parents_call_is_a_part_of_the_call(kind):
    chain = chain_of("forward", a=kind(4, 4), b=L.Linear(4, 2))
    model = from_chain(chain, X[0])
    assert list(model) == [chain.a, chain.b]


def test_depth_opens_links_with_an_own_call():
    chain = chain_of("__call__", one=Pair(Scale(4)), two=Pair(Scale(4)))
    assert list(from_chain(chain, X).chain_names.values()) == ["/one", "/two"]
    model = from_chain(chain, X, depth=2)
    names = ["/one/first", "/one/second", "/two/first", "/two/second"]
    assert list(model.chain_names.values()) == names
    np.testing.assert_allclose(model(X).array, chain(X).array, rtol=1e-6)


def test_a_sequential_with_a_call_of_its_own_is_no_list():
    class Added(chainer.Sequential):
        def __call__(self, x):
            return super().__call__(x) + x

    chain = Added(L.Linear(4, 4), F.relu)
    model = from_chain(chain, X[0])
    np.testing.assert_array_equal(model(X[0]).array, chain(X[0]).array)


def test_classes_have_their_calls_again_and_other_threads_are_not_heard():
    before = Gained.__call__, TwiceGained.__call__
    other = TwiceGained(4, 4)

    def call(x):
        # from_chain tries minibatches of other widths too.
        with contextlib.suppress(type_check.InvalidType):
            other(x)

    class Calling(chainer.Chain):
        def __init__(self):
            super().__init__(a=TwiceGained(4, 4))

        def __call__(self, x):
            thread = threading.Thread(target=call, args=(x,))
            thread.start()
            thread.join()
            return self.a(x)

    chain = Calling()
    assert list(from_chain(chain, X[0])) == [chain.a]

    class Failing(Calling):
        def __call__(self, x):
            self.a(x)
            raise KeyError("none")

    with pytest.raises(ValueError, match="forward raised KeyError"):
        from_chain(Failing(), X[0])
    assert (Gained.__call__, TwiceGained.__call__) == before
