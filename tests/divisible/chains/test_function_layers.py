"""Functions between two links as layers: old ones, and some with array arguments."""

import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import from_chain

X = np.random.RandomState(0).normal(size=(3, 4)).astype(np.float32)


class Net(chainer.Chain):
    def __init__(self, call):
        super().__init__(a=L.Linear(4, 4), b=L.Linear(4, 2))
        self._call = call

    def __call__(self, x):
        return self._call(self, x)


class Scaled(chainer.Function):
    """A function of the old kind, which keeps something from forward to backward."""

    def __init__(self, factor):
        self.factor = factor

    def forward(self, inputs):
        self.positive = inputs[0] > 0
        return (inputs[0] * self.factor * self.positive,)

    def backward(self, inputs, grads):
        return (grads[0] * self.factor * self.positive,)


class Halves(chainer.Function):
    def forward(self, inputs):
        n = inputs[0].shape[1] // 2
        return inputs[0][:, :n] + 0, inputs[0][:, n:] * inputs[1]

    def backward(self, inputs, grads):
        (x, y), (first, second) = inputs, grads
        gx = np.concatenate([first, second * y], axis=1)
        return gx, (second * x[:, x.shape[1] // 2 :]).sum(keepdims=True).reshape(
            y.shape
        )


def scaled(self, x):
    h = Scaled(3)(self.a(x))
    return self.b(Scaled(np.arange(4, dtype=np.float32))(h))


def halves(self, x):
    first, second = Halves()(self.a(x), np.full((1, 1), 2, np.float32))
    return self.b(F.concat([second, first]))


@pytest.mark.parametrize("call", [scaled, halves])
def test_functions_of_the_old_kind(call):
    chain = Net(call)
    model = pickle.loads(pickle.dumps(from_chain(chain, X)))
    gradients = []
    # Twice, because such a function is called once only.
    for each in (chain, model, model):
        each.cleargrads()
        y = each(X[:2])
        F.sum(y * y).backward()
        gradients.append([y.array, *(p.grad for _, p in sorted(each.namedparams()))])
    for mine in gradients[1:]:
        for a, b in zip(mine, gradients[0]):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_arrays_among_the_arguments_of_functions_are_inputs():
    def call(self, x):
        h = self.a(x)
        return self.b(F.where(x > 0, h, -h)[:, x[0].argsort() * 0 + np.arange(4)])

    chain = Net(call)
    model = from_chain(chain, X)
    y = np.random.RandomState(1).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_allclose(model(y).array, chain(y).array, rtol=1e-5)
    assert any("condition=input[2]" in str(layer) for layer in model)


def test_several_outputs_are_a_tuple():
    def call(self, x):
        h = F.relu(self.a(x))
        return self.b(h), h

    chain = Net(call)
    model = from_chain(chain, X)
    for mine, theirs in zip(model(X), chain(X)):
        np.testing.assert_array_equal(mine.array, theirs.array)


class SegNet(chainer.Chain):
    def __init__(self):
        super().__init__(
            a=L.Convolution2D(3, 4, 3, pad=1), b=L.Convolution2D(4, 2, 3, pad=1)
        )

    def __call__(self, x):
        h, indexes = F.max_pooling_2d(F.relu(self.a(x)), 2, return_indices=True)
        return self.b(F.upsampling_2d(h, indexes, 2, stride=2, outsize=x.shape[2:]))


def test_a_large_array_is_not_printed_in_a_message():
    images = np.random.RandomState(0).rand(2, 3, 32, 32).astype(np.float32)
    with pytest.raises(ValueError) as caught:
        from_chain(SegNet(), images)
    text = str(caught.value)
    assert "the function Upsampling2D reads an array of shape (2, 4, 16, 16)" in text
    assert "in SegNet.__call__: return self.b(F.upsampling_2d(h, indexes, 2" in text
    assert text.count("\n") < 10 and len(text) < 1000


def test_a_list_of_sequences_is_refused_with_the_way_to_one_array():
    class Reader(chainer.Chain):
        def __call__(self, xs):
            return xs

    with pytest.raises(ValueError, match=r"concat_examples\(xs, padding=-1\)"):
        from_chain(Reader(), [X, X[:2]])


def test_a_list_in_a_call_is_refused_with_its_line():
    class Bidirectional(chainer.Chain):
        def __init__(self):
            super().__init__(rnn=L.NStepLSTM(1, 4, 4, 0.0))

        def __call__(self, x):
            return self.rnn(None, None, [row[None] for row in x])[0][0]

    with pytest.raises(ValueError) as caught:
        from_chain(Bidirectional(), X)
    text = str(caught.value)
    assert "/rnn (NStepLSTM) is called with a list of 3 arrays, xs," in text
    assert "[row[None] for row in x]" in text and text.count("\n") < 10
