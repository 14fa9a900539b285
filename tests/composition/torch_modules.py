"""Modules of PyTorch as layers of the composed models."""

from __future__ import annotations

import chainer
import numpy as np
import torch
from torch import nn

from torch_layers import TorchLayer


def seeded(make, *args, **options):
    """Returns a module as a layer, with weights by NumPy's seed, in the set dtype."""
    torch.manual_seed(np.random.randint(2**31))
    dtype = np.dtype(chainer.config.dtype).name
    return TorchLayer(make(*args, **options).to(getattr(torch, dtype)))


class ResidualModule(nn.Module):
    """Adds what two modules make of the input to the input."""

    def __init__(self, kind, *args, **options):
        super().__init__()
        self.first, self.second = kind(*args, **options), kind(*args, **options)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


class AllOutputs(nn.LSTM):
    """An LSTM that passes on its outputs alone."""

    def forward(self, x):
        return super().forward(x)[0]
