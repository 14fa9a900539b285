"""Layers of the composed models that are neither Chainer's links nor functions."""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import carry_state
from divisible.backward.split_functions import register_split


class Residual(chainer.Chain):
    """Adds what two links make of the input to the input."""

    def __init__(self, make_link):
        super().__init__()
        with self.init_scope():
            self.first, self.second = make_link(), make_link()

    def forward(self, x):
        return x + self.second(F.tanh(self.first(x)))


class Scaled(chainer.Link):
    """Multiplies each feature by a parameter of its own."""

    def __init__(self, n):
        super().__init__()
        with self.init_scope():
            self.factor = chainer.Parameter(chainer.initializers.Uniform(1.0), (n,))

    def forward(self, x):
        return x * F.broadcast_to(1 + self.factor, x.shape)


class Split(chainer.Link):
    """Two tensors with gradients, integers, and one tensor without a gradient."""

    def forward(self, x):
        signs = (x.array > 0).astype(np.int32)
        return x * 2, F.sum(x, axis=1, keepdims=True), signs, x.array * 0.5


class Merge(chainer.Link):
    def forward(self, doubled, total, signs, half):
        shape = doubled.shape
        y = doubled + F.broadcast_to(0.1 * total, shape)
        return y + (0.25 * signs).astype(y.dtype) - chainer.as_variable(half)


class Name(chainer.Link):
    """Gives names to a variable, to integers and to an array without a gradient."""

    def forward(self, x):
        signs = (x.array > 0).astype(np.int32)
        return {"h": x * 2, "signs": signs, "half": x.array * 0.5}


class Use(chainer.Link):
    def forward(self, named):
        h = named["h"] + (0.25 * named["signs"]).astype(named["h"].dtype)
        return h - chainer.as_variable(named["half"])


class SplitScale(chainer.FunctionNode):
    """A product with a vector, whose backward runs in halves."""

    def forward(self, inputs):
        self.retain_inputs((0, 1))
        return (inputs[0] * inputs[1],)

    def backward(self, indexes, grad_outputs):
        of_x = _of_input(self, (0,), grad_outputs)
        both = of_x + _of_weight(self, (1,), grad_outputs)
        return tuple(both[i] for i in indexes)


def _of_input(scale, indexes, grad_outputs):
    (gy,), (_, w) = grad_outputs, scale.get_retained_inputs()
    return (gy * F.broadcast_to(w, gy.shape),)


def _of_weight(scale, indexes, grad_outputs):
    (gy,), (x, _) = grad_outputs, scale.get_retained_inputs()
    return (F.sum(gy * x, axis=0),)


register_split(SplitScale, _of_input, _of_weight)


class SplitScaled(chainer.Link):
    def __init__(self, n):
        super().__init__()
        with self.init_scope():
            self.w = chainer.Parameter(chainer.initializers.Uniform(1.0), (n,))

    def forward(self, x):
        return SplitScale().apply((x, self.w))[0]


def is_odd(h):
    """Whether a microbatch is to be treated otherwise; its first sample decides."""
    return float(chainer.as_array(h).ravel()[0]) > 0


class Sometimes(chainer.Chain):
    """Two layers, of which a microbatch uses one."""

    def __init__(self, n):
        super().__init__()
        with self.init_scope():
            self.left, self.right = L.Linear(n, n), L.Linear(n, n)

    def forward(self, x):
        return self.left(x) if is_odd(x) else self.right(x)


class Gate(chainer.Link):
    """Stops gradients in some microbatches."""

    def forward(self, x):
        return chainer.Variable(x.array) if is_odd(x) else x


class Pad(chainer.Link):
    """Adds a feature in some microbatches."""

    def forward(self, x):
        n_more = 1 + is_odd(x)
        zeros = np.zeros((len(x), n_more), x.dtype)
        return F.concat([x, zeros], axis=1)


class Crop(chainer.Link):
    def forward(self, x):
        return x[:, :6]


class Auxiliary(chainer.Link):
    """A value of each sample for the loss, computed from what a layer has returned."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.factor = chainer.Parameter(chainer.initializers.Uniform(1.0), (1,))

    def forward(self, x):
        means = F.mean(F.tanh(F.reshape(x, (len(x), -1))), axis=1)
        return F.sigmoid(means * F.broadcast_to(1 + self.factor, means.shape))


class Noise(chainer.Link):
    """Adds random numbers that depend on the microbatch."""

    def forward(self, x):
        return x + (0.1 * np.random.normal(size=x.shape)).astype(x.dtype)


class Reporting(chainer.Link):
    """Reports the mean of its input."""

    def forward(self, x):
        chainer.report({"mean": F.mean(x)}, self)
        return x


class Join(chainer.Chain):
    """The first layer of a model with two inputs."""

    def __init__(self, n_x, n_z, n):
        super().__init__()
        with self.init_scope():
            self.of_x, self.of_z = L.Linear(n_x, n), L.Linear(n_z, n)

    def forward(self, x, z):
        return self.of_x(x) + F.tanh(self.of_z(z))


class TwoHeads(chainer.Chain):
    """The last layer of a model with two outputs."""

    def __init__(self, n, n_out):
        super().__init__()
        with self.init_scope():
            self.main, self.other = L.Linear(n, n_out), L.Linear(n, 2)

    def forward(self, x):
        return self.main(x), self.other(x)


class Recurrent(chainer.Chain):
    """Reads (samples, positions, units) from where it was."""

    def __init__(self, kind, n):
        super().__init__()
        with self.init_scope():
            self.cell = carry_state(kind(n, n))

    def forward(self, x):
        return F.stack([self.cell(x[:, i]) for i in range(x.shape[1])], axis=1)


class Reader(chainer.Chain):
    """Reads each sequence from its beginning."""

    def __init__(self, n):
        super().__init__()
        with self.init_scope():
            self.lstm = L.LSTM(n, n)

    def forward(self, x):
        self.lstm.reset_state()
        return F.stack([self.lstm(x[:, i]) for i in range(x.shape[1])], axis=1)


class NStep(chainer.Chain):
    """Chainer's LSTM of whole sequences."""

    def __init__(self, n):
        super().__init__()
        with self.init_scope():
            self.lstm = L.NStepLSTM(1, n, n, 0)

    def forward(self, x):
        _, _, states = self.lstm(None, None, list(F.separate(x, axis=0)))
        return F.stack(states)


class EachWord(L.Linear):
    """The same linear layer at each position."""

    def forward(self, x):
        return super().forward(x, n_batch_axes=2)


class Scores(L.Linear):
    """Scores of the shape (samples, words, positions)."""

    def forward(self, x):
        return F.swapaxes(super().forward(x, n_batch_axes=2), 1, 2)


class NormalizedWords(L.LayerNormalization):
    """Layer normalization at each position."""

    def forward(self, x):
        n, length, units = x.shape
        y = super().forward(F.reshape(x, (n * length, units)))
        return F.reshape(y, (n, length, units))


def joined(x, skipped):
    """Returns both ends of a skip connection, side by side."""
    return F.concat([x, skipped], axis=1)


def kept(auxiliary, x):
    """Leaves out a value that is stashed for the loss."""
    return x


def gated(x, skipped):
    return x * F.sigmoid(skipped)


def pool(x):
    return F.max_pooling_2d(x, 3, stride=1, pad=1)


def average(x):
    return F.average_pooling_2d(x, 3, stride=1, pad=1)


def halved(x):
    """An array is no variable, so it has no gradient."""
    return x * 0.5
