"""A U-Net as a list of layers."""

from __future__ import annotations

from functools import partial

import chainer
import chainer.functions as F
import chainer.links as L
from chainer.initializers import HeNormal

from divisible import Divisible, pop, stash


def concatenate(x: chainer.Variable, skipped: chainer.Variable) -> chainer.Variable:
    """Joins the values from below with those of the skip connection, as channels."""
    return F.concat((x, skipped))


class UNet(Divisible):
    """A network that classifies each pixel.

    Downwards every level has half the height and width, and twice the channels. Upwards
    each level joins the values from below with those that it stashed on the way down::

        2 conv  stash - - - - - - - - - - - - - - - pop  2 conv  conv
                  pool                            up
                      2 conv  stash - - - pop  2 conv
                                pool    up
                                   2 conv

    where ``conv`` is a convolution with its activation.

    The model can be cut anywhere. With its padded convolutions the output is as large
    as the input.

    Args:
        n_classes (int): Number of classes.
        n_channels (int): Channels of the images, whose height and width can be halved
            ``depth`` times.
        width (int): Channels of the first level.
        depth (int): Number of times that height and width are halved.

    See Ronneberger et al., U-Net: Convolutional Networks for Biomedical Image
    Segmentation, MICCAI 2015, where ``width`` is 64 and ``depth`` is 4.
    """

    def __init__(
        self,
        n_classes: int = 2,
        n_channels: int = 1,
        width: int = 16,
        depth: int = 2,
    ) -> None:
        for level in range(depth):
            self._append_convolutions(n_channels, width << level)
            self.append(stash(f"level{level}"))
            self.append(partial(F.max_pooling_2d, ksize=2))
            n_channels = width << level
        self._append_convolutions(n_channels, width << depth)
        for level in reversed(range(depth)):
            n_channels = width << level
            up = L.Deconvolution2D(2 * n_channels, n_channels, 2, stride=2)
            self.append(up)
            self.append(pop(f"level{level}", concatenate))
            self._append_convolutions(2 * n_channels, n_channels)
        self.append(L.Convolution2D(width, n_classes, 1))

    def _append_convolutions(self, n_in: int, n_out: int) -> None:
        for n in (n_in, n_out):
            self.append(L.Convolution2D(n, n_out, 3, pad=1, initialW=HeNormal()))
            self.append(F.relu)
