"""Handwritten digits, and networks that read them."""

from __future__ import annotations

from typing import NamedTuple

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from sklearn.datasets import load_digits

#: Images that are not trained with.
N_TEST = 800


class Digits(NamedTuple):
    """Images of 8 x 8 pixels and their classes, for training and for testing."""

    x: np.ndarray
    t: np.ndarray
    x_test: np.ndarray
    t_test: np.ndarray


def digits(seed: int) -> Digits:
    """Returns the images, split at random."""
    x, t = load_digits(return_X_y=True)
    x, t = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8), t.astype(np.int32)
    order = np.random.RandomState(1000 + seed).permutation(len(x))
    train, test = order[:-N_TEST], order[-N_TEST:]
    return Digits(x[train], t[train], x[test], t[test])


class SmallNet(chainer.Chain):
    """Two convolutions and two fully connected layers.

    Args:
        normalizes: Whether there is batch normalization after the convolutions, which
            needs several samples.
    """

    def __init__(self, normalizes: bool) -> None:
        super().__init__()
        with self.init_scope():
            # Normalization would subtract a bias again, so there is none.
            options = {"pad": 1, "nobias": normalizes}
            self.conv1 = L.Convolution2D(1, 16, 3, **options)
            self.conv2 = L.Convolution2D(16, 32, 3, stride=2, **options)
            if normalizes:
                self.norm1 = L.BatchNormalization(16)
                self.norm2 = L.BatchNormalization(32)
            self.fc1 = L.Linear(32 * 4 * 4, 96)
            self.fc2 = L.Linear(96, 10)
        self._normalizes = normalizes

    def forward(self, x: np.ndarray) -> chainer.Variable:
        """Returns the scores of the classes."""
        h = self.conv1(x)
        h = F.relu(self.norm1(h) if self._normalizes else h)
        h = self.conv2(h)
        h = F.relu(self.norm2(h) if self._normalizes else h)
        return self.fc2(F.relu(self.fc1(h)))

    def loss(self, x: np.ndarray, t: np.ndarray) -> chainer.Variable:
        """Returns the loss of some samples."""
        return F.softmax_cross_entropy(self(x), t)


def accuracy(model: chainer.Chain, data: Digits) -> float:
    """Returns how many test images in a hundred are classified right."""
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return 100 * float(F.accuracy(model(data.x_test), data.t_test).array)
