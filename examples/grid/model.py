"""A convolutional network that reads handwritten digits."""

from __future__ import annotations

import chainer.functions as F
import chainer.links as L

from divisible import Divisible


class DigitNet(Divisible):
    """Three convolutions and three fully connected layers, 0.4 million parameters.

    The convolutions take most of the time, and the fully connected layers have most of
    the parameters, whose gradients replicas exchange.

    Args:
        width (int): Channels of the first convolution; the others have twice as many.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.append(L.Convolution2D(1, width, 3, pad=1))
        self.append(F.relu)
        self.append(L.Convolution2D(width, 2 * width, 3, pad=1))
        self.append(F.relu)
        self.append(half)
        self.append(L.Convolution2D(2 * width, 2 * width, 3, pad=1))
        self.append(F.relu)
        self.append(L.Linear(2 * width * 16, 8 * width))
        self.append(F.relu)
        self.append(F.dropout)
        self.append(L.Linear(8 * width, 8 * width))
        self.append(F.relu)
        self.append(L.Linear(8 * width, 10))


def half(x):
    """Halves height and width."""
    return F.max_pooling_2d(x, 2)
