"""Loops of activations."""

import numpy as np

from chainer_kernels.compiling import loop
from chainer_kernels.loops import exponential

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


@loop("void(f4[::1], f4[::1], f4[::1], f4)")
def leaky_relu(condition, x, y, slope):
    """Computes ``y = x``, times the slope where the condition is not positive."""
    for i in range(x.size):
        y[i] = x[i] * (slope if condition[i] <= ZERO else ONE)


@loop("void(f4[::1], f4[::1], f4)")
def clipped_relu(x, y, cap):
    """Computes ``y = min(max(x, 0), cap)``, where what is no number stays so."""
    for i in range(x.size):
        positive = ZERO if x[i] < ZERO else x[i]
        y[i] = cap if positive > cap else positive


@loop("void(f4[::1], f4[::1], f4[::1], f4)")
def clipped_relu_grad(x, gy, gx, cap):
    """Computes ``gx = gy * (0 < x < cap)``."""
    for i in range(x.size):
        inside = ONE if x[i] > ZERO else ZERO
        gx[i] = gy[i] * (inside if x[i] < cap else ZERO)


@loop("void(f4[::1], f4[::1])")
def tanh(x, y):
    """Computes the hyperbolic tangent."""
    for i in range(x.size):
        y[i] = exponential.tanh(x[i])


@loop("void(f4[::1], f4[::1], f4[::1])")
def tanh_grad(y, gy, gx):
    """Computes ``gx = gy * (1 - y^2)``."""
    for i in range(y.size):
        gx[i] = gy[i] * (ONE - y[i] * y[i])


@loop("void(f4[::1], f4[::1])")
def sigmoid(x, y):
    """Computes the logistic sigmoid."""
    for i in range(x.size):
        y[i] = exponential.sigmoid(x[i])


@loop("void(f4[::1], f4[::1], f4[::1])")
def sigmoid_grad(y, gy, gx):
    """Computes ``gx = gy * y * (1 - y)``."""
    for i in range(y.size):
        gx[i] = gy[i] * y[i] * (ONE - y[i])


@loop("void(f4[::1], f4[::1], f4)")
def elu(x, y, alpha):
    """Computes ``y = x``, and ``alpha * (exp(x) - 1)`` where that is not positive."""
    for i in range(x.size):
        negative = ZERO if x[i] > ZERO else x[i]
        y[i] = x[i] if x[i] > ZERO else alpha * exponential.expm1(negative)


@loop("void(f4[::1], f4[::1], f4[::1], f4)")
def elu_grad(condition, y, gx, alpha):
    """Computes ``gx = y + alpha``, and 1 where the condition is positive."""
    for i in range(y.size):
        gx[i] = ONE if condition[i] > ZERO else y[i] + alpha


@loop("void(f4[::1], f4[::1], f4[::1])")
def multiply(x, mask, y):
    """Computes ``y = x * mask``."""
    for i in range(x.size):
        y[i] = x[i] * mask[i]
