"""Loops of activations."""

import numpy as np

from chainer_kernels.compiling import loop

# A literal number would take the arithmetic to float64.
ZERO, ONE = np.float32(0), np.float32(1)


@loop("void(f4[::1], f4[::1])")
def relu(x, y):
    """Computes ``y = max(x, 0)``, where what is no number stays so."""
    for i in range(x.size):
        y[i] = ZERO if x[i] <= ZERO else x[i]


@loop("void(f4[::1], f4[::1], f4[::1])")
def relu_grad(y, gy, gx):
    """Computes ``gx = gy * (y > 0)``."""
    for i in range(y.size):
        gx[i] = gy[i] * (ONE if y[i] > ZERO else ZERO)
