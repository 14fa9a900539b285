"""The two networks of Oyama et al., scaled down to digits of 8 x 8 pixels.

CaffeNet keeps five convolutions and three fully connected layers, which hold most of
the parameters. GoogLeNet keeps its stem, inception modules and an auxiliary classifier,
and has most of its parameters in convolutions. Local response normalization and dropout
are left out: dropout would hide small differences behind its random numbers.
"""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

Variable = chainer.Variable
#: Weight of the auxiliary classifier's loss, as in Caffe's settings.
AUXILIARY = 0.3
#: Initial weights that suit layers with ReLU.
HE = chainer.initializers.HeNormal()


class CaffeNet(chainer.Chain):
    """Five convolutions, of which three have two groups, and three Linear layers.

    Args:
        width: Outputs of the two large Linear layers.
    """

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(1, 24, 3, pad=1, initialW=HE)
            self.conv2 = L.Convolution2D(24, 48, 5, pad=2, groups=2, initialW=HE)
            self.conv3 = L.Convolution2D(48, 64, 3, pad=1, initialW=HE)
            self.conv4 = L.Convolution2D(64, 64, 3, pad=1, groups=2, initialW=HE)
            self.conv5 = L.Convolution2D(64, 48, 3, pad=1, groups=2, initialW=HE)
            self.fc6 = L.Linear(48 * 2 * 2, width, initialW=HE)
            self.fc7 = L.Linear(width, width, initialW=HE)
            self.fc8 = L.Linear(width, 10, initialW=HE)

    def forward(self, x: np.ndarray) -> Variable:
        """Returns the scores of the classes."""
        h = F.max_pooling_2d(F.relu(self.conv1(x)), 2)
        h = F.max_pooling_2d(F.relu(self.conv2(h)), 2)
        h = F.relu(self.conv4(F.relu(self.conv3(h))))
        h = F.relu(self.conv5(h))
        return self.fc8(F.relu(self.fc7(F.relu(self.fc6(h)))))

    def loss(self, x: np.ndarray, t: np.ndarray) -> Variable:
        """Returns the loss of some samples."""
        return F.softmax_cross_entropy(self(x), t)


class Inception(chainer.Chain):
    """Four branches over the same input, whose outputs are joined.

    Args:
        n_in: Channels of the input.
        sizes: Outputs of the convolutions of 1 x 1; before and of 3 x 3; before and of
            5 x 5; and after pooling.
    """

    def __init__(self, n_in: int, sizes: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        one, before_three, three, before_five, five, pooled = sizes
        with self.init_scope():
            self.conv1 = L.Convolution2D(n_in, one, 1, initialW=HE)
            self.reduce3 = L.Convolution2D(n_in, before_three, 1, initialW=HE)
            self.conv3 = L.Convolution2D(before_three, three, 3, pad=1, initialW=HE)
            self.reduce5 = L.Convolution2D(n_in, before_five, 1, initialW=HE)
            self.conv5 = L.Convolution2D(before_five, five, 5, pad=2, initialW=HE)
            self.pooled = L.Convolution2D(n_in, pooled, 1, initialW=HE)

    def forward(self, x: Variable) -> Variable:
        """Returns the joined outputs."""
        branches = (
            self.conv1(x),
            self.conv3(F.relu(self.reduce3(x))),
            self.conv5(F.relu(self.reduce5(x))),
            self.pooled(F.max_pooling_2d(x, 3, 1, 1)),
        )
        return F.relu(F.concat(branches))


class GoogLeNet(chainer.Chain):
    """Three convolutions, three inception modules and an auxiliary classifier."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(1, 16, 3, pad=1, initialW=HE)
            self.reduce2 = L.Convolution2D(16, 16, 1, initialW=HE)
            self.conv2 = L.Convolution2D(16, 32, 3, pad=1, initialW=HE)
            self.inception3 = Inception(32, (12, 12, 16, 4, 8, 8))
            self.inception4 = Inception(44, (16, 16, 24, 4, 8, 8))
            self.inception5 = Inception(56, (24, 16, 32, 6, 12, 12))
            self.auxiliary = L.Convolution2D(56, 16, 1, initialW=HE)
            self.auxiliary_fc = L.Linear(16 * 2 * 2, 32, initialW=HE)
            self.auxiliary_classifier = L.Linear(32, 10, initialW=HE)
            self.classifier = L.Linear(80, 10, initialW=HE)

    def forward(self, x: np.ndarray) -> Variable:
        """Returns the scores of the classes."""
        return self._scores(self._middle(x))

    def loss(self, x: np.ndarray, t: np.ndarray) -> Variable:
        """Returns the loss of some samples, with that of the auxiliary classifier."""
        middle = self._middle(x)
        h = F.relu(self.auxiliary(middle))
        h = self.auxiliary_classifier(F.relu(self.auxiliary_fc(h)))
        loss = F.softmax_cross_entropy(self._scores(middle), t)
        return loss + AUXILIARY * F.softmax_cross_entropy(h, t)

    def _middle(self, x: np.ndarray) -> Variable:
        h = F.max_pooling_2d(F.relu(self.conv1(x)), 2)
        h = F.relu(self.conv2(F.relu(self.reduce2(h))))
        h = self.inception4(self.inception3(h))
        return F.max_pooling_2d(h, 2)

    def _scores(self, middle: Variable) -> Variable:
        return self.classifier(F.average(self.inception5(middle), axis=(2, 3)))
