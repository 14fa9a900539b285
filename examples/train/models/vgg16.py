"""VGG16 as a list of layers."""

from __future__ import annotations

from functools import partial

import chainer.functions as F
import chainer.links as L
from chainer.initializers import HeNormal

from divisible import Divisible

# The outputs of the 13 convolutions, in five groups with a pooling after each.
GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(Divisible):
    """VGG16: 13 convolutions and 3 fully connected layers.

    ReLU, max pooling and dropout are layers of their own and count when the model is
    cut, as in section 7 of Takisawa et al. That makes 38 layers::

        0 conv  1 relu  2 conv  3 relu  4 pool | 5 conv ... 9 pool | ... 16 pool |
        ... 23 pool | ... 30 pool | 31 fc 32 relu 33 dropout | 34 ... 36 | 37 fc

    Args:
        n_classes (int): Number of classes.
        image_size (int): Height and width of the images; from 32 on.
        n_channels (int): Channels of the images.
        n_units (int or None): Outputs of the first two fully connected layers;
            ``None`` for 4096 as published, or 512 for images below 224 pixels.
        dropout (float): Dropout ratio; with 0 there are no dropout layers.
        batch_normalization (bool): Whether to normalize after every convolution.
            Not part of the published VGG16. A pipeline normalizes over microbatches.

    See Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image
    Recognition, ICLR 2015, configuration D.
    """

    def __init__(
        self,
        n_classes: int = 10,
        image_size: int = 32,
        n_channels: int = 3,
        n_units: int | None = None,
        dropout: float = 0.5,
        batch_normalization: bool = False,
    ) -> None:
        if image_size < 32:
            raise ValueError(
                f"image_size is {image_size}: VGG16 halves it five times, so it"
                f" must be 32 at least"
            )
        if n_units is None:
            n_units = 4096 if image_size >= 224 else 512
        n_in, size = n_channels, image_size
        for group in GROUPS:
            for n_out in group:
                self.append(L.Convolution2D(n_in, n_out, 3, pad=1, initialW=HeNormal()))
                if batch_normalization:
                    self.append(L.BatchNormalization(n_out))
                self.append(F.relu)
                n_in = n_out
            self.append(partial(F.max_pooling_2d, ksize=2, stride=2))
            # Chainer's pooling counts an incomplete window at the border as one.
            size = (size + 1) // 2
        n_in *= size * size

        for _ in range(2):
            self.append(L.Linear(n_in, n_units, initialW=HeNormal()))
            self.append(F.relu)
            if dropout > 0:
                self.append(partial(F.dropout, ratio=dropout))
            n_in = n_units
        self.append(L.Linear(n_units, n_classes))
