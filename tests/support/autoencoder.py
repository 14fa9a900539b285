"""A model whose second layer has the weight of the first one, transposed."""

import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible

#: A minibatch for it.
X = np.random.RandomState(0).normal(size=(4, 5)).astype(np.float32)


def autoencoder():
    """Returns the model, with equal weights in each call."""
    np.random.seed(0)
    model = Divisible(L.Linear(5, 3), F.tanh, L.Linear(3, 5))
    model.tie("/0/W", "/2/W", transpose=True)
    return model
