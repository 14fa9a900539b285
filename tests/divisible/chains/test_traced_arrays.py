"""Operations of NumPy on a chain's inputs become layers."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import from_chain

WORDS = np.random.RandomState(0).randint(-1, 9, (4, 5)).astype(np.int32)
X = np.random.RandomState(1).normal(size=(4, 6)).astype(np.float32)


class Net(chainer.Chain):
    def __init__(self, call):
        super().__init__(e=L.EmbedID(9, 6, ignore_label=-1), a=L.Linear(6, 6))
        self._call = call

    def __call__(self, *x):
        return self.a(self._call(self, *x))


def mean(self, x):
    mask = (x >= 0)[:, :, None].astype(np.float32)
    return F.sum(self.e(x) * mask, axis=1) / np.maximum(mask.sum(axis=1), 1)


def moved(self, x):
    shifted = np.concatenate([x[:, 1:], x[:, :1]], axis=1)
    return F.sum(self.e(shifted) + self.e(x.T.transpose(1, 0)), axis=1)


def chosen(self, x):
    h = self.e(x)
    low = self.xp.full(h.shape, -9, np.float32)
    return F.max(F.where(self.xp.broadcast_to((x > 3)[..., None], h.shape), h, low), 1)


def picked(self, x):
    h = self.e(x)
    return h[self.xp.arange(len(x)) * 0, x.argmax(axis=1)] + F.sum(h, axis=1)


def reshaped(self, x):
    flat = self.e(x.reshape(-1))
    return F.sum(F.reshape(flat, (len(x), -1, 6)), axis=1)


def as_variable(self, x):
    return F.sum(self.e(chainer.Variable(np.asarray(x))), axis=1)


@pytest.mark.parametrize("call", [mean, moved, chosen, picked, reshaped, as_variable])
def test_operations_on_inputs_are_layers(call):
    chain = Net(call)
    model = from_chain(chain, WORDS)
    for x in (WORDS, WORDS[:2, ::-1], np.resize(WORDS, (3, 9))):
        y, expected = model(x).array, chain(x).array
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
        for cut in range(1, len(model)):
            h, skipped = model.divide(0, cut).run(x, {})
            y = model.divide(cut, None).run(h, skipped)[0].array
            np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


class Plain(chainer.Chain):
    def __init__(self, call):
        super().__init__(a=L.Linear(6, 6))
        self._call = call

    def __call__(self, x):
        return self._call(self, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda self, x: self.a(x / 255 - 0.5),
        lambda self, x: self.a(x) + np.abs(x),
        lambda self, x: F.relu(x[:, ::-1]) + self.a(x),
        lambda self, x: self.a(np.where(x > 0, x, 0)) * x,
        # Accepted as a variable only.
        lambda self, x: self.a(F.reshape(x, (x.data.shape[0], 6))),
    ],
)
def test_arrays_of_floats(call):
    chain = Plain(call)
    model = from_chain(chain, X)
    np.testing.assert_allclose(
        model(X[:3]).array, chain_output(chain, X[:3]), rtol=1e-5
    )


def chain_output(chain, x):
    try:
        return chain(x).array
    except AttributeError:
        return chain(chainer.Variable(x)).array


def changed(self, x):
    y = x * 2
    y[y < 0] = 0
    y[:, :2] += x[:, 2:4]
    return self.a(y)


def added(self, x):
    x += 1
    h = F.relu(x) + self.a(x)
    y = x > 0
    y &= x < 1
    y = y.astype(np.float64)
    y *= x
    return h * y.astype(np.float32)


@pytest.mark.parametrize("call", [changed, added])
def test_a_change_in_place_is_an_operation_with_a_new_result(call):
    chain = Plain(call)
    x = X.copy()
    model = from_chain(chain, x)
    np.testing.assert_array_equal(x, X)
    y, expected = model(X[:3].copy()).array, chain(X[:3].copy()).array
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def in_a_view(self, x):
    y = x * 2
    part = y[:, :3]
    part += 1
    return self.a(y)


def sorted_in_place(self, x):
    y = x * 2
    y.sort()
    return self.a(y)


REFUSED = {
    "forward changes an array in place": [sorted_in_place],
    "that is neither the input nor what": [
        lambda self, x: self.a(x) + np.tanh(x.view(np.ndarray)),
        lambda self, x: self.a(x) * self.a.W.array.sum(axis=0)[None],
    ],
    "reads the parameter /a/W outside": [
        lambda self, x: F.linear(x, self.a.W.array),
        lambda self, x: self.a(x) + x * self.a.W.data[:1],
        # The codes of a VQ-VAE, whose layer would keep this rank's weights.
        lambda self, x: (
            self.a(x) + (self.a(x).data[:, None] - self.a.W.data[None]).argmin(1)
        ),
    ],
    "forward makes a number of values": [
        lambda self, x: self.a(x) * max(1.0, float(abs(x).max()) / 50),
        lambda self, x: self.a(x) if (x < 50).all() else self.a(x) * 2,
        lambda self, x: self.a(x) * len(x[:1, 0].astype(int).tolist()),
        lambda self, x: self.a(x) * np.count_nonzero(x),
        lambda self, x: self.a(x) * (2 if x[:1, :1] < 50 else 1),
    ],
}


def test_sizes_and_texts_of_arrays_may_be_read():
    def call(self, x):
        assert np.ndim(x) == len(np.shape(x)) == 2 and np.size(x) > 5
        assert "array" in repr(x) and str(x) == f"{x}"
        return self.a(x)

    assert len(from_chain(Plain(call), X)) == 1


def of_what_a_view_shows(self, x):
    y = x * 2
    first = y[:, 0]
    y[y > 99] = 0
    return self.a(y) * first[:, None]


def nothing_in_the_example(self, x):
    mask = x > -99
    mask[:, 0][x[:, 0] > 99] = False
    return self.a(x) * mask


@pytest.mark.parametrize(
    "call", [in_a_view, of_what_a_view_shows, nothing_in_the_example]
)
def test_what_the_change_of_another_array_has_changed_is_refused(call):
    with pytest.raises(ValueError, match="a change in place of another one"):
        from_chain(Plain(call), X)


def test_a_view_may_be_changed_where_nothing_else_reads_the_memory():
    def call(self, x):
        x = x.reshape(len(x), 2, 3)[:, 0]
        x /= 255
        return self.a(np.concatenate([x, x], axis=1))

    chain = Plain(call)
    model = from_chain(chain, X.copy())
    np.testing.assert_allclose(
        model(X[:3].copy()).array, chain(X[:3].copy()).array, rtol=1e-5
    )


@pytest.mark.parametrize(
    "reason, call", [(reason, call) for reason in REFUSED for call in REFUSED[reason]]
)
def test_what_no_layer_can_repeat_is_refused_with_its_line(reason, call):
    with pytest.raises(ValueError) as caught:
        from_chain(Plain(call), X)
    text = str(caught.value)
    assert reason in text.partition("\n")[0]
    assert "of test_traced_arrays.py, in " in text
    assert text.count("\n") < 10 and len(text) < 1000
