"""Arguments of calls of links: those at their defaults are left out."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import from_chain
from divisible.chains.calls import ChainError
from divisible.chains.positional import by_position

X = np.random.RandomState(0).normal(size=(3, 4)).astype(np.float32)
Y = X + 1


def forward(x, y=None, scale=1, *, mode="a"):
    return x


@pytest.mark.parametrize(
    "args, kwargs, expected",
    [
        ((X,), {}, (X,)),
        ((X, None), {}, (X,)),
        ((X, None, 1), {"mode": "a"}, (X,)),
        ((X,), {"y": None, "scale": 1}, (X,)),
        ((X,), {"y": Y}, (X, Y)),
        ((), {"y": Y, "x": X}, (X, Y)),
    ],
)
def test_arguments_at_their_defaults_are_left_out(args, kwargs, expected):
    found = by_position(forward, "it", args, kwargs)
    assert len(found) == len(expected)
    assert all(a is b for a, b in zip(found, expected))


@pytest.mark.parametrize(
    "args, kwargs, reason",
    [
        ((X, None, 2), {}, "it is called with scale=2"),
        ((X, Y, 2), {}, "it is called with scale=2"),
        ((X, Y, True), {}, "it is called with scale=True"),
        ((X,), {"mode": "b"}, "it is called with mode='b'"),
        (([X, Y],), {}, "it is called with a list of 2 arrays, x,"),
        ((X, Y, 1, 2), {}, "it is called with argument 2=1"),
    ],
)
def test_other_arguments_are_refused(args, kwargs, reason):
    with pytest.raises(ChainError) as caught:
        by_position(forward, "it", args, kwargs)
    assert str(caught.value).startswith(reason)
    assert "position only" in str(caught.value)


def test_a_flag_of_the_mode_is_refused_with_the_configuration_that_replaces_it():
    def forward(x, train):
        return x

    with pytest.raises(ChainError, match="train=True.*read chainer.config.train"):
        by_position(forward, "it", (X, True), {})
    with pytest.raises(ChainError, match="test=False.*read chainer.config.train"):
        by_position(L.BatchNormalization(4).forward, "it", (X,), {"test": False})


class Block(chainer.Chain):
    def __init__(self):
        super().__init__(a=L.Linear(4, 4))

    def __call__(self, x, y=None, scale=None):
        h = F.relu(self.a(x))
        return h if y is None else h + y


class Net(chainer.Chain):
    def __init__(self, call, q=None):
        super().__init__(p=Block(), q=q or Block())
        self._call = call

    def __call__(self, x):
        return self._call(self, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda self, x: self.q(self.p(x, None), None, None),
        lambda self, x: self.q(self.p(x), y=self.p(x)),
        lambda self, x: self.q(x=self.p(x, scale=None), y=x),
    ],
)
def test_a_chain_with_optional_inputs_becomes_layers(call):
    chain = Net(call)
    model = from_chain(chain, X)
    assert {chain.p, chain.q} <= set(model)
    np.testing.assert_allclose(model(Y).array, chain(Y).array, rtol=1e-6)


class Scaled(chainer.Chain):
    def __init__(self):
        super().__init__(a=L.Linear(4, 4), bn=L.BatchNormalization(4))

    def __call__(self, x, scale, is_shown):
        h = F.relu(self.bn(self.a(x))) * scale
        return h, None if is_shown else 1


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_child_that_no_layer_can_call_is_taken_apart(is_shown):
    chain = chainer.Chain(p=Block(), q=Scaled(), r=Scaled())

    def call(x):
        h, _ = chain.q(chain.p(x), 3, is_shown)
        return chain.r(h, 0.5, is_shown=is_shown)[0]

    model = from_chain(chain, X, forward=call)
    assert chain.p in set(model) and chain.q not in set(model)
    names = ["/p", "/q/a", "/q/bn", "/r/a", "/r/bn"]
    assert list(model.chain_names.values()) == names
    with chainer.using_config("train", False):
        np.testing.assert_allclose(model(Y).array, call(Y).array, rtol=1e-6)


def test_a_child_is_taken_apart_in_all_of_its_calls():
    chain = Net(lambda self, x: self.q(self.q(self.p(x)), None, 3))
    model = from_chain(chain, X)
    assert list(model).count(chain.q.a) == 2
    np.testing.assert_allclose(model(Y).array, chain(Y).array, rtol=1e-6)


def test_a_flag_of_training_in_a_child_is_what_is_refused():
    class Flagged(Scaled):
        def __call__(self, x, scale, is_training):
            with chainer.using_config("train", is_training):
                return self.bn(F.relu(x)) * scale

    chain = Net(lambda self, x: self.q(self.p(x), 3, True), q=Flagged())
    del chain.q.a
    with pytest.raises(ValueError, match="another way in test mode, as by a flag"):
        from_chain(chain, X)


class Shifted(chainer.Chain):
    def __init__(self):
        super().__init__(a=L.Linear(4, 4))
        with self.init_scope():
            self.shift = chainer.Parameter(1.0, (4,))

    def __call__(self, x, scale=None):
        return self.a(x) + scale * F.broadcast_to(self.shift, x.shape)


def test_a_refusal_has_the_line_of_the_forward():
    # Its parameter is used between its links, so that it cannot be taken apart either.
    chain = Net(lambda self, x: self.q(self.p(x), 3), q=Shifted())
    with pytest.raises(ValueError) as caught:
        from_chain(chain, X)
    text = str(caught.value)
    assert "/q (Shifted) is called with scale=3" in text
    assert "test_positional.py, in " in text and "self.q(self.p(x), 3)" in text
    assert "With the links of /q as layers: " in text and "/q/shift outside" in text
    assert text.count("\n") < 10 and len(text) < 1000


def test_a_refusal_names_the_child_that_is_to_change():
    # The first child can be taken apart, and only the second one cannot.
    chain = chainer.Chain(p=Scaled(), q=Shifted())
    with pytest.raises(ValueError) as caught:
        from_chain(chain, X, forward=lambda x: chain.q(chain.p(x, 2, True)[0], 3))
    assert "/q (Shifted) is called with scale=3" in str(caught.value)
    assert "/p" not in str(caught.value).split("\n")[0]
