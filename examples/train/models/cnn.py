"""A small convolutional network."""

from __future__ import annotations

from functools import partial

import chainer.functions as F
import chainer.links as L
from chainer.initializers import HeNormal

from divisible import Divisible


class CNN(Divisible):
    """A small convolutional network, for images from 4 x 4 pixels on.

    Args:
        n_classes (int): Number of classes.
        image_shape (tuple): Channels, height and width of the images.
        n_channels (int): Outputs of the first convolution.
    """

    def __init__(
        self,
        n_classes: int = 10,
        image_shape: tuple[int, int, int] = (1, 8, 8),
        n_channels: int = 32,
    ) -> None:
        n_in, height, width = image_shape
        for n_out in (n_channels, 2 * n_channels):
            for _ in range(2):
                self.append(L.Convolution2D(n_in, n_out, 3, pad=1, initialW=HeNormal()))
                self.append(F.relu)
                n_in = n_out
            self.append(partial(F.max_pooling_2d, ksize=2, stride=2))
            # Chainer's pooling counts an incomplete window at the border as one.
            height, width = (height + 1) // 2, (width + 1) // 2
        self.append(L.Linear(n_in * height * width, 128, initialW=HeNormal()))
        self.append(F.relu)
        self.append(L.Linear(128, n_classes))
