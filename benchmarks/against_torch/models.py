"""The models that are compared, in Chainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from benchmarks.common.perceptron import minibatch, mlp
from divisible import Divisible, pop, stash
from examples.train.models.resnet50 import ResNet50
from examples.train.models.vgg16 import VGG16

N_CLASSES = 10


class LanguageModel(chainer.Chain):
    """Two layers of LSTM between an embedding and scores of words, with dropout.

    Zaremba et al., Recurrent Neural Network Regularization, 2014: the medium one.
    """

    N_WORDS, N_UNITS, N_LAYERS, DROPOUT = 10_000, 650, 2, 0.5

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(self.N_WORDS, self.N_UNITS)
            self.lstm = L.NStepLSTM(
                self.N_LAYERS, self.N_UNITS, self.N_UNITS, self.DROPOUT
            )
            self.scores = L.Linear(self.N_UNITS, self.N_WORDS)

    def forward(self, x):
        """Turns words (samples, positions) into scores (samples * positions, words)."""
        h = F.dropout(self.embed(x), self.DROPOUT)
        _, _, outputs = self.lstm(None, None, list(F.separate(h, axis=0)))
        return self.scores(F.dropout(F.concat(outputs, axis=0), self.DROPOUT))


class TransformerLayer(chainer.Chain):
    """Causal attention and two fully connected layers, each normalized and added."""

    def __init__(self, n_units: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        with self.init_scope():
            self.norm1 = L.LayerNormalization(n_units)
            self.qkv = L.Linear(n_units, 3 * n_units)
            self.out = L.Linear(n_units, n_units)
            self.norm2 = L.LayerNormalization(n_units)
            self.inner = L.Linear(n_units, 4 * n_units)
            self.outer = L.Linear(4 * n_units, n_units)

    def forward(self, h, mask):
        """Passes on (samples * positions, units); masks (positions, positions)."""
        qkv = self.qkv(self.norm1(h))
        attended = self.out(attend(qkv, mask=mask, n_heads=self.n_heads))
        h += F.dropout(attended, self.dropout)
        inner = F.relu(self.inner(self.norm2(h)))
        return h + F.dropout(self.outer(inner), self.dropout)

    def layers(self, name, mask):
        """Returns the same as layers of a list, whose names begin with ``name``."""
        drop = [partial(F.dropout, ratio=self.dropout)] if self.dropout else []
        around, past = (
            f"{name} {part}".replace(" ", "-") for part in ("attention", "perceptron")
        )
        return [
            *(stash(around), self.norm1, self.qkv),
            partial(attend, mask=mask, n_heads=self.n_heads),
            *(self.out, *drop, pop(around, F.add)),
            *(stash(past), self.norm2, self.inner, F.relu),
            *(self.outer, *drop, pop(past, F.add)),
        ]


def attend(qkv, mask, n_heads):
    """Returns what positions attend to, of queries, keys and values side by side."""
    n_positions, n_units = len(mask), qkv.shape[1] // 3
    shape = (-1, n_positions, 3, n_heads, n_units // n_heads)
    # Queries, keys and values of (samples, heads, positions, units of a head).
    q, k, v = F.separate(F.transpose(F.reshape(qkv, shape), (2, 0, 3, 1, 4)))
    scores = F.matmul(q, k, transb=True) * q.shape[-1] ** -0.5
    mask = mask.astype(scores.dtype, copy=False)
    shares = F.softmax(scores + F.broadcast_to(mask, scores.shape), axis=3)
    return F.reshape(F.swapaxes(F.matmul(shares, v), 1, 2), (-1, n_units))


class Transformer(chainer.Chain):
    """Layers of causal attention between an embedding and scores of words."""

    N_WORDS, N_UNITS, N_LAYERS, N_HEADS, DROPOUT = 2000, 256, 4, 4, 0.1

    def __init__(self, n_positions: int) -> None:
        super().__init__()
        layers = [
            TransformerLayer(self.N_UNITS, self.N_HEADS, self.DROPOUT)
            for _ in range(self.N_LAYERS)
        ]
        self._mask = np.triu(np.full([n_positions] * 2, -np.inf, "f"), 1)
        with self.init_scope():
            self.embed = L.EmbedID(self.N_WORDS, self.N_UNITS)
            self.places = L.EmbedID(n_positions, self.N_UNITS)
            self.layers = chainer.ChainList(*layers)
            self.norm = L.LayerNormalization(self.N_UNITS)
            self.scores = L.Linear(self.N_UNITS, self.N_WORDS)

    def forward(self, x):
        """Turns words (samples, positions) into scores (samples * positions, words)."""
        h = self._begin(x)
        for layer in self.layers:
            h = layer(h, self._mask)
        return self.scores(self.norm(h))

    def _begin(self, x):
        words = self.embed(x)
        h = words + F.broadcast_to(self.places.W, words.shape)
        h = F.reshape(h, (-1, self.N_UNITS))
        return F.dropout(h, self.DROPOUT) if self.DROPOUT else h

    def as_list(self):
        """Returns the same links as a list of layers."""
        first = chainer.Chain(embed=self.embed, places=self.places)
        first.forward = self._begin
        layers = Divisible(first)
        for i, layer in enumerate(self.layers):
            layers += layer.layers(f"layer{i}", self._mask)
        return layers + Divisible(self.norm, self.scores)


class TransformerWithoutDropout(Transformer):
    """The same without dropout, so that losses can be compared."""

    DROPOUT = 0.0


class Workload(NamedTuple):
    """A model and the data to train it on.

    Attributes:
        title: Title of the model, with the size of its minibatch.
        build: Makes the model.
        batch: Makes a minibatch of inputs and targets.
        optimizer: Makes the optimizer.
        is_convolutional: Whether PyTorch has another memory layout for it.
        has_dropout: Whether its losses can be compared only in test mode.
        as_list: Makes the same model as a list of all that can be a layer, which may
            be fused; ``None`` where nothing would be.
    """

    title: str
    build: Callable[[], chainer.Link]
    batch: Callable[[], tuple[np.ndarray, np.ndarray]]
    optimizer: Callable[[], chainer.Optimizer]
    is_convolutional: bool = False
    has_dropout: bool = True
    as_list: Callable[[], Divisible] | None = None


def images(size: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes random images and their classes."""
    random = np.random.RandomState(0)
    x = random.standard_normal((n, 3, size, size)).astype(np.float32)
    return x, random.randint(0, N_CLASSES, n).astype(np.int32)


def texts(n_words: int, n: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes random texts (n, length), and the word after each of theirs."""
    random = np.random.RandomState(0)
    words = random.randint(0, n_words, (n, length + 1)).astype(np.int32)
    return words[:, :-1].copy(), words[:, 1:].ravel()


def _momentum() -> chainer.Optimizer:
    return chainer.optimizers.MomentumSGD(0.01)


WORKLOADS = {
    "vgg16": Workload(
        "VGG16, 32 x 32 pixels, batch 84",
        VGG16,
        lambda: images(32, 84),
        _momentum,
        is_convolutional=True,
        as_list=VGG16,
    ),
    "resnet50": Workload(
        "ResNet50, 32 x 32 pixels, batch 30",
        ResNet50,
        lambda: images(32, 30),
        _momentum,
        is_convolutional=True,
        has_dropout=False,
        as_list=partial(ResNet50, cut_inside_blocks=True),
    ),
    "lstm": Workload(
        "LSTM language model, 2 x 650 units, 20 texts of 35 words",
        LanguageModel,
        lambda: texts(LanguageModel.N_WORDS, 20, 35),
        lambda: chainer.optimizers.SGD(1.0),
    ),
    "transformer": Workload(
        "Transformer, 4 layers of 256 units, 32 texts of 64 words",
        lambda: Transformer(64),
        lambda: texts(Transformer.N_WORDS, 32, 64),
        lambda: chainer.optimizers.Adam(1e-3),
        as_list=lambda: Transformer(64).as_list(),
    ),
    "mlp": Workload(
        "perceptron, 32 layers of 1024 units, batch 1200",
        lambda: mlp(1024, 32),
        lambda: minibatch(1024, 1200),
        lambda: chainer.optimizers.SGD(0.01),
        has_dropout=False,
        as_list=lambda: mlp(1024, 32),
    ),
    "resnet50-64": Workload(
        "ResNet50, 64 x 64 pixels, batch 8",
        ResNet50,
        lambda: images(64, 8),
        _momentum,
        is_convolutional=True,
        has_dropout=False,
        as_list=partial(ResNet50, cut_inside_blocks=True),
    ),
}
