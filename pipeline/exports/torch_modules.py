"""The ``nn.Sequential`` of PyTorch that computes what a list of layers does.

A module's name is the position of its layer, so that ``'3.weight'`` is ``'/3/W'``.
Chainer's ``Linear`` flattens its input. If there is something to flatten, a module
``'flatten_6'`` precedes ``'6'``. A layer that is a module of PyTorch already is copied.
"""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import chainer
import chainer.links as L
import numpy as np
import torch
from torch import nn

_RENAMED = {
    "W": "weight",
    "b": "bias",
    "gamma": "weight",
    "beta": "bias",
    "avg_mean": "running_mean",
    "avg_var": "running_var",
    "N": "num_batches_tracked",
}


def sequential(model: Any, x: np.ndarray, with_values: bool = True) -> nn.Sequential:
    """Returns a module of PyTorch that is equivalent to a list of layers.

    Args:
        model (chainer.Sequential): A ``Divisible``, or a list of layers like it.
        x: Inputs, whose number of dimensions determines some modules.
        with_values (bool): Whether the module gets the values of the layers.

    Raises:
        ValueError: If layers have no equivalent; the message lists them.
    """
    missing: list[str] = []
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    value: Any = x
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        for position, layer in enumerate(model, getattr(model, "layer_range", (0,))[0]):
            inputs, shape = value, getattr(value, "shape", None)
            value = layer(*value) if isinstance(value, tuple) else layer(value)
            module = None
            if shape is not None and isinstance(value, chainer.Variable):
                module = _module(layer, inputs)
            if module is None:
                missing.append(f"layer {position}, {_text(layer)}")
                continue
            if isinstance(layer, L.Linear) and len(shape) > 2:
                modules[f"flatten_{position}"] = nn.Flatten()
            modules[str(position)] = module
            if with_values and isinstance(layer, chainer.Link):
                _give_values(module, layer)
    if missing:
        raise ValueError(
            f"PyTorch has no module for {'; '.join(missing)}: name what is left as a"
            f" function of chainer.functions, or export to onnx"
        )
    made = nn.Sequential(modules)
    made.eval()
    return made


def _text(layer: Any) -> str:
    while isinstance(layer, functools.partial):
        layer = layer.func
    return getattr(layer, "__name__", type(layer).__name__)


def _module(layer: Any, x: Any) -> nn.Module | None:
    """Returns the module for a layer; ``None`` if there is none."""
    if isinstance(layer, chainer.Sequential):
        array = x.array if isinstance(x, chainer.Variable) else x
        return sequential(layer, array)
    if isinstance(getattr(layer, "module", None), nn.Module):
        return copy.deepcopy(layer.module)
    if isinstance(layer, chainer.Link):
        # Exact types only, because a subclass may compute anything.
        make = _LINKS.get(type(layer))
        return None if make is None else make(layer, x.ndim)
    settings: dict[str, Any] = {}
    while isinstance(layer, functools.partial):
        if layer.args:
            return None
        settings = {**layer.keywords, **settings}
        layer = layer.func
    module = getattr(layer, "__module__", None) or ""
    make = _FUNCTIONS.get(getattr(layer, "__name__", ""))
    if make is None or not module.startswith(("chainer.", "chainer_kernels")):
        return None
    return make(**settings)


def _give_values(module: nn.Module, link: chainer.Link) -> None:
    if isinstance(link, chainer.Sequential):
        return
    if isinstance(getattr(link, "module", None), nn.Module):
        module.load_state_dict(link.module.state_dict())
        return
    state = {}
    for name in (*link._params, *link._persistent):
        value = getattr(link, name)
        array = value.array if isinstance(value, chainer.Parameter) else value
        if name in _RENAMED and array is not None:
            host = chainer.get_device("@numpy").send(np.asarray(array))
            state[_RENAMED[name]] = torch.from_numpy(np.array(host))
    module.load_state_dict(state)


def _convolution(link: Any, ndim: int) -> nn.Module:
    kinds = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
    return kinds[ndim](
        link.W.shape[1] * link.groups,
        link.W.shape[0],
        link.W.shape[2:],
        link.stride,
        link.pad,
        link.dilate,
        link.groups,
        link.b is not None,
    )


def _deconvolution(link: Any, ndim: int) -> nn.Module | None:
    if link.outsize is not None or link.groups != 1:
        return None
    return nn.ConvTranspose2d(
        *link.W.shape[:2],
        link.W.shape[2:],
        link.stride,
        link.pad,
        dilation=link.dilate,
        bias=link.b is not None,
    )


def _batch_normalization(link: Any, ndim: int) -> nn.Module | None:
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    has_both = getattr(link, "gamma", None) is not None
    has_both = has_both and getattr(link, "beta", None) is not None
    if link.axis is not None or not has_both or ndim not in kinds:
        return None
    if ndim == 3 and link.avg_mean.ndim > 1:
        return None
    return kinds[ndim](len(link.avg_mean), link.eps, 1 - link.decay)


def _linear(link: Any, ndim: int) -> nn.Module:
    return nn.Linear(*link.W.shape[::-1], bias=link.b is not None)


def _embedding(link: Any, ndim: int) -> nn.Module | None:
    return nn.Embedding(*link.W.shape) if link.ignore_label is None else None


def _layer_normalization(link: Any, ndim: int) -> nn.Module | None:
    return nn.LayerNorm(link.gamma.shape, link.eps) if ndim == 2 else None


_LINKS: Mapping[type, Callable[[Any, int], nn.Module | None]] = {
    L.Linear: _linear,
    L.Convolution2D: _convolution,
    L.ConvolutionND: _convolution,
    L.Convolution1D: _convolution,
    L.Convolution3D: _convolution,
    L.Deconvolution2D: _deconvolution,
    L.BatchNormalization: _batch_normalization,
    L.EmbedID: _embedding,
    L.LayerNormalization: _layer_normalization,
}


def _max_pooling(
    ksize: Any, stride: Any = None, pad: Any = 0, cover_all: bool = True
) -> nn.Module:
    return nn.MaxPool2d(ksize, stride, pad, ceil_mode=cover_all)


def _average_pooling(ksize: Any, stride: Any = None, pad: Any = 0) -> nn.Module:
    return nn.AvgPool2d(ksize, stride, pad)


# With the defaults of Chainer's functions.
_FUNCTIONS: Mapping[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "leaky_relu": lambda slope=0.2: nn.LeakyReLU(slope),
    "elu": lambda alpha=1.0: nn.ELU(alpha),
    "selu": nn.SELU,
    "softplus": lambda beta=1.0: nn.Softplus(beta),
    "dropout": lambda ratio=0.5: nn.Dropout(ratio),
    "softmax": lambda axis=1: nn.Softmax(axis),
    "log_softmax": lambda axis=1: nn.LogSoftmax(axis),
    "max_pooling_2d": _max_pooling,
    "average_pooling_2d": _average_pooling,
}
