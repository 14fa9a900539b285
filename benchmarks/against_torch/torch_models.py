"""The models in PyTorch, made of those in Chainer, with their weights.

Each layer becomes PyTorch's own module for it. Where PyTorch has a faster way than a
translation, such as attention in one function, that is taken.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from functools import partial
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import torch
from torch import nn
from torch.nn import functional as tf

from benchmarks.against_torch.models import LanguageModel, Transformer, TransformerLayer
from examples.train.models.resnet50 import Bottleneck, Convolution


@functools.singledispatch
def converted(layer: Any) -> nn.Module:
    """Returns the module that computes the same as a layer of Chainer."""
    if layer is F.relu:
        return nn.ReLU(inplace=True)
    if isinstance(layer, partial) and layer.func is F.max_pooling_2d:
        return nn.MaxPool2d(**_pooling(**layer.keywords))
    if isinstance(layer, partial) and layer.func is F.dropout:
        return nn.Dropout(layer.keywords["ratio"])
    if isinstance(layer, partial) and layer.func is F.mean:
        return _Mean(layer.keywords["axis"])
    raise TypeError(f"PyTorch has no module for {layer!r}")


def _pooling(ksize: int, stride: int, pad: int = 0, cover_all: bool = True) -> dict:
    return dict(kernel_size=ksize, stride=stride, padding=pad, ceil_mode=cover_all)


def _with_parameters(
    module: nn.Module, **parameters: chainer.Parameter | None
) -> nn.Module:
    """Gives a module the values of Chainer's parameters, by its own names for them."""
    for name, parameter in parameters.items():
        if parameter is not None:
            getattr(module, name).data = torch.from_numpy(parameter.array.copy())
    return module


@converted.register
def _(layer: chainer.Sequential) -> nn.Module:
    modules: list[nn.Module] = []
    for each in layer:
        is_first_linear = isinstance(each, L.Linear) and any(
            isinstance(module, nn.Conv2d) for module in modules
        )
        if is_first_linear and not any(isinstance(m, nn.Flatten) for m in modules):
            modules.append(nn.Flatten())
        modules.append(converted(each))
    return nn.Sequential(*modules)


@converted.register
def _(layer: L.Linear) -> nn.Module:
    n_out, n_in = layer.W.shape
    return _with_parameters(nn.Linear(n_in, n_out), weight=layer.W, bias=layer.b)


@converted.register
def _(layer: L.Convolution2D) -> nn.Module:
    n_out, n_in, *kernel = layer.W.shape
    module = nn.Conv2d(
        n_in, n_out, kernel, layer.stride, layer.pad, bias=layer.b is not None
    )
    return _with_parameters(module, weight=layer.W, bias=layer.b)


@converted.register
def _(layer: L.BatchNormalization) -> nn.Module:
    module = nn.BatchNorm2d(layer.gamma.size, layer.eps)
    return _with_parameters(module, weight=layer.gamma, bias=layer.beta)


@converted.register
def _(layer: L.LayerNormalization) -> nn.Module:
    module = nn.LayerNorm(layer.gamma.size, layer.eps)
    return _with_parameters(module, weight=layer.gamma, bias=layer.beta)


@converted.register
def _(layer: L.EmbedID) -> nn.Module:
    return _with_parameters(nn.Embedding(*layer.W.shape), weight=layer.W)


@converted.register
def _(layer: L.NStepLSTM) -> nn.Module:
    n_units = layer.out_size
    module = nn.LSTM(n_units, n_units, layer.n_layers, dropout=layer.dropout)
    # Chainer has a matrix for each gate and both inputs, in PyTorch's order.
    for i, (ws, bs) in enumerate(zip(layer.ws, layer.bs)):
        for kind, gates in (("ih", slice(4)), ("hh", slice(4, 8))):
            _with_parameters(
                module,
                **{
                    f"weight_{kind}_l{i}": F.concat(ws[gates], axis=0),
                    f"bias_{kind}_l{i}": F.concat(bs[gates], axis=0),
                },
            )
    return module


class _Mean(nn.Module):
    """The mean over some axes."""

    def __init__(self, axes: Iterable[int]) -> None:
        super().__init__()
        self._axes = tuple(axes)

    def forward(self, x):
        return x.mean(self._axes)


@converted.register
def _(layer: Convolution) -> nn.Module:
    return nn.Sequential(*map(converted, layer.layers()))


class _Bottleneck(nn.Module):
    """A block of ResNet50."""

    def __init__(self, block: Bottleneck) -> None:
        super().__init__()
        relu = nn.ReLU(inplace=True)
        self.inside = nn.Sequential(
            *(converted(block.conv1), relu, converted(block.conv2), relu),
            converted(block.conv3),
        )
        self.shortcut = (
            nn.Identity() if block.shortcut is None else converted(block.shortcut)
        )

    def forward(self, x):
        return tf.relu_(self.inside(x) + self.shortcut(x))


converted.register(Bottleneck, _Bottleneck)


class _LanguageModel(nn.Module):
    """The language model; its texts have their positions first within."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.embed = converted(model.embed)
        self.lstm = converted(model.lstm)
        self.scores = converted(model.scores)
        self.dropout = nn.Dropout(model.DROPOUT)

    def forward(self, x):
        h, _ = self.lstm(self.dropout(self.embed(x.t())))
        return self.scores(self.dropout(h).transpose(0, 1).flatten(0, 1))


converted.register(LanguageModel, _LanguageModel)


class _TransformerLayer(nn.Module):
    """A layer of the Transformer."""

    def __init__(self, layer: TransformerLayer) -> None:
        super().__init__()
        self.norm1, self.qkv = converted(layer.norm1), converted(layer.qkv)
        self.norm2, self.out = converted(layer.norm2), converted(layer.out)
        self.inner, self.outer = converted(layer.inner), converted(layer.outer)
        self.dropout = nn.Dropout(layer.dropout)
        self.n_heads = layer.n_heads

    def forward(self, h):
        qkv = self.qkv(self.norm1(h)).unflatten(2, (3, self.n_heads, -1))
        attended = tf.scaled_dot_product_attention(
            *qkv.permute(2, 0, 3, 1, 4), is_causal=True
        )
        h = h + self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        return h + self.dropout(self.outer(tf.relu(self.inner(self.norm2(h)))))


converted.register(TransformerLayer, _TransformerLayer)


class _Places(nn.Module):
    """Embeddings of words, with those of their places added."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.embed, self.places = converted(model.embed), converted(model.places)
        self.dropout = nn.Dropout(model.DROPOUT)

    def forward(self, x):
        return self.dropout(self.embed(x) + self.places.weight)


@converted.register
def _(model: Transformer) -> nn.Module:
    last = converted(model.norm), converted(model.scores), nn.Flatten(0, 1)
    return nn.Sequential(_Places(model), *map(converted, model.layers), *last)


@functools.singledispatch
def optimizer(like: chainer.Optimizer, module: nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer that updates as Chainer's does."""
    raise TypeError(f"PyTorch has no optimizer for {like!r}")


@optimizer.register
def _(like: chainer.optimizers.SGD, module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), like.lr)


@optimizer.register
def _(like: chainer.optimizers.MomentumSGD, module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), like.lr, like.momentum)


@optimizer.register
def _(like: chainer.optimizers.Adam, module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(
        module.parameters(), like.alpha, (like.beta1, like.beta2), like.eps
    )
