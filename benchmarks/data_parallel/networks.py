"""Networks of many parameters and little work, and of few and much."""

from __future__ import annotations

from typing import NamedTuple

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np


class Network(NamedTuple):
    """A network, and how it trains.

    Attributes:
        sizes: Sizes of the convolutions, and of the fully connected layers but the
            last.
        batch: Samples of a replica in a step.
        lr: The learning rate.
    """

    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    batch: int
    lr: float

    def make(self) -> chainer.Sequential:
        """Returns the network, for images of 8 x 8 pixels and ten classes."""
        np.random.seed(0)
        convolutions, fully_connected = self.sizes
        layers, before = [], 1
        for n in convolutions:
            layers += [L.Convolution2D(before, n, 3, pad=1), F.relu]
            before = n
        layers.append(_pool)
        before *= 16
        for n in (*fully_connected, 10):
            layers += [L.Linear(before, n), F.relu]
            before = n
        return chainer.Sequential(*layers[:-1])


def _pool(x: chainer.Variable) -> chainer.Variable:
    return F.max_pooling_2d(x, 2)


#: A network like AlexNet, with nearly all parameters fully connected; and one with
#: nearly all in convolutions.
NETWORKS = {
    "AlexNet-like": Network(((16, 32), (2048, 2048)), 8, 0.01),
    "convolutions": Network(((48, 48, 48, 48), ()), 32, 0.01),
}
