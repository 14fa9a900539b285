"""Activations of one number, for all loops that compute them.

Loops of one activation and loops of fused ones call the same straight-line code. Each
operation rounds, as NumPy's do: a product that is added to in one rounding would not be
found again where a fused loop has the same product for something else.
"""

import numpy as np
from numba import njit

from chainer_kernels.loops import exponential

# A literal number would take the arithmetic to float64.
ZERO, ONE = np.float32(0), np.float32(1)

# Numba would take what is not said here from the loop.
_inlined = njit(error_model="numpy", fastmath=False)


@_inlined
def relu(x):
    """Returns max(x, 0); NaN stays NaN."""
    return ZERO if x <= ZERO else x


@_inlined
def relu_grad(y, gy):
    """Returns gy where y is positive, and 0 elsewhere."""
    return gy * (ONE if y > ZERO else ZERO)


@_inlined
def leaky_relu(condition, x, slope):
    """Returns x, times the slope where the condition is not positive."""
    return x * (slope if condition <= ZERO else ONE)


@_inlined
def clipped_relu(x, cap):
    """Returns min(max(x, 0), cap); NaN stays NaN."""
    positive = ZERO if x < ZERO else x
    return cap if positive > cap else positive


@_inlined
def clipped_relu_grad(x, gy, cap):
    """Returns gy where 0 < x < cap, and 0 elsewhere."""
    inside = ONE if x > ZERO else ZERO
    return gy * (inside if x < cap else ZERO)


@_inlined
def tanh_grad(y, gy):
    """Returns gy (1 - y^2)."""
    return gy * (ONE - y * y)


@_inlined
def sigmoid_grad(y, gy):
    """Returns gy y (1 - y)."""
    return gy * y * (ONE - y)


@_inlined
def elu(x, alpha):
    """Returns x, and alpha (e^x - 1) where that is not positive."""
    negative = ZERO if x > ZERO else x
    return x if x > ZERO else alpha * exponential.expm1(negative)


@_inlined
def elu_grad(condition, y, alpha):
    """Returns y + alpha, and 1 where the condition is positive."""
    return ONE if condition > ZERO else y + alpha


@_inlined
def sign(x):
    """Returns -1, 0 or 1; NaN stays NaN."""
    at_zero = ZERO if x == ZERO else x
    return ONE if x > ZERO else (-ONE if x < ZERO else at_zero)
