"""ResNet50 as a list of layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
from chainer.initializers import HeNormal

import chainer_kernels
from divisible import Divisible, pop, stash

# Number of blocks in each group, and the channels inside them.
GROUPS = ((3, 64), (4, 128), (6, 256), (3, 512))
N_BLOCKS = sum(n for n, _ in GROUPS)


@chainer_kernels.fusible
class Convolution(chainer.Chain):
    """A convolution, with batch normalization or otherwise with a bias."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        ksize: int,
        stride: int = 1,
        batch_normalization: bool = True,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(
                n_in,
                n_out,
                ksize,
                stride,
                pad=ksize // 2,
                nobias=batch_normalization,
                initialW=HeNormal(scale),
            )
            self.norm = L.BatchNormalization(n_out) if batch_normalization else None

    def forward(self, x):
        """Convolves ``x``."""
        y = self.conv(x)
        return y if self.norm is None else self.norm(y)

    def layers(self) -> list[chainer.Link]:
        """Returns the links of the convolution."""
        return [self.conv] if self.norm is None else [self.conv, self.norm]


@chainer_kernels.fusible
class Bottleneck(chainer.Chain):
    """The block of ResNet50: three convolutions and a shortcut around them.

    A block is one layer when the model is cut, as in section 7 of Takisawa et al.: a
    cut inside would send the shortcut as well. Use :meth:`layers` for a block that can
    be cut anywhere.

    Args:
        n_in (int): Channels of the input.
        n_inside (int): Channels between the convolutions; the output has four times
            as many.
        stride (int): Stride; 2 halves height and width.
        batch_normalization (bool): Whether to normalize after each convolution.
    """

    def __init__(
        self,
        n_in: int,
        n_inside: int,
        stride: int = 1,
        batch_normalization: bool = True,
    ) -> None:
        super().__init__()
        norm, n_out = batch_normalization, 4 * n_inside
        # Every block adds to the variance of its input. Without normalization that
        # doubles it 16 times, unless the blocks begin with a small share.
        scale = 1.0 if norm else N_BLOCKS**-0.5
        with self.init_scope():
            self.conv1 = Convolution(n_in, n_inside, 1, 1, norm)
            self.conv2 = Convolution(n_inside, n_inside, 3, stride, norm)
            self.conv3 = Convolution(n_inside, n_out, 1, 1, norm, scale)
            if n_in != n_out or stride != 1:
                # No ReLU cuts anything off here, so half He's variance is right.
                self.shortcut = Convolution(n_in, n_out, 1, stride, norm, 0.5**0.5)
            else:
                self.shortcut = None

    def forward(self, x):
        """Computes the output of the block."""
        h = F.relu(self.conv1(x))
        h = F.relu(self.conv2(h))
        h = self.conv3(h)
        return F.relu(h + (x if self.shortcut is None else self.shortcut(x)))

    def layers(self, name: str) -> list[Any]:
        """Returns the block as layers that can be cut anywhere.

        ::

            stash | conv norm relu | conv norm relu | conv norm | pop, add | relu
              :                                                    ^
              '- - - - - - - - - - - - - - - - - - - - - - - - - - '

        Args:
            name (str): Name of the shortcut.
        """
        layers = [stash(name)]
        for convolution in (self.conv1, self.conv2):
            layers += [*convolution.layers(), F.relu]
        layers += self.conv3.layers()
        if self.shortcut is None:
            layers.append(pop(name, F.add))
        else:
            layers += [pop(name), AddShortcut(self.shortcut)]
        return [*layers, F.relu]


@chainer_kernels.fusible
class AddShortcut(chainer.Chain):
    """Adds the block's input to its result, in the shape of the result."""

    def __init__(self, convolution: Convolution) -> None:
        super().__init__()
        with self.init_scope():
            self.convolution = convolution

    def forward(self, h, x):
        """Returns the sum."""
        return h + self.convolution(x)


class ResNet50(Divisible):
    """ResNet50: a convolution, 16 bottleneck blocks and a fully connected layer.

    A block is one layer when the model is cut; its stride is in the 3 x 3
    convolution, as everywhere today. From 224 pixels on the model is the published
    one, of 21 layers; smaller images get a 3 x 3 convolution and no pooling in front,
    or little would be left of them::

        0 conv  1 relu  2 pool | 3 ... 18 blocks | 19 average  20 fc     224 x 224
        0 conv  1 relu         | 2 ... 17 blocks | 18 average  19 fc      32 x 32

    With ``cut_inside_blocks`` each block is 11 or 12 layers, so that the model can be
    cut inside; for small images the model then has 185 layers. For the same random
    numbers its weights are the same, but its paths are not.

    Args:
        n_classes (int): Number of classes.
        image_size (int): Height and width of the images; the model depends only on
            whether they are 224 or more.
        n_channels (int): Channels of the images.
        batch_normalization (bool): Whether to use batch normalization; ``False`` for
            biases instead and smaller initial weights. A pipeline normalizes over
            microbatches, so only without it training equals serial training.
        cut_inside_blocks (bool): Whether every convolution, normalization and
            activation is a layer of its own.

    See He et al., Deep Residual Learning for Image Recognition, CVPR 2016.
    """

    def __init__(
        self,
        n_classes: int = 10,
        image_size: int = 32,
        n_channels: int = 3,
        batch_normalization: bool = True,
        cut_inside_blocks: bool = False,
    ) -> None:
        norm = batch_normalization
        is_large = image_size >= 224
        ksize, stride = (7, 2) if is_large else (3, 1)
        convolution = Convolution(n_channels, 64, ksize, stride, norm)
        self.extend(convolution.layers() if cut_inside_blocks else [convolution])
        self.append(F.relu)
        if is_large:
            self.append(
                partial(F.max_pooling_2d, ksize=3, stride=2, pad=1, cover_all=False)
            )
        n_in = 64
        for group, (n_blocks, n_inside) in enumerate(GROUPS):
            for block in range(n_blocks):
                stride = 2 if group > 0 and block == 0 else 1
                one = Bottleneck(n_in, n_inside, stride, norm)
                name = f"block{group}-{block}"
                self.extend(one.layers(name) if cut_inside_blocks else [one])
                n_in = 4 * n_inside
        self.append(partial(F.mean, axis=(2, 3)))
        self.append(L.Linear(n_in, n_classes))
