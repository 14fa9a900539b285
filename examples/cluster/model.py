"""A network for handwritten digits as a list of layers."""

from __future__ import annotations

import chainer.functions as F
import chainer.links as L

from divisible import Divisible


class Network(Divisible):
    """Blocks of convolution, batch normalization and ReLU, and a linear layer.

    Args:
        width (int): Channels of the first block; the others have twice as many.
        n_blocks (int): Number of blocks.
    """

    def __init__(self, width: int = 16, n_blocks: int = 4) -> None:
        n_in = 1
        for block in range(n_blocks):
            n_out = width if block == 0 else 2 * width
            self.append(L.Convolution2D(n_in, n_out, 3, pad=1, nobias=True))
            self.append(L.BatchNormalization(n_out))
            self.append(F.relu)
            n_in = n_out
        self.append(L.Linear(n_in * 8 * 8, 10))
