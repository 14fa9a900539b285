"""Loops of activations."""

from chainer_kernels.compiling import loop
from chainer_kernels.loops import exponential, pointwise


@loop("void(f4[::1], f4[::1])")
def relu(x, y):
    """Computes ``y = max(x, 0)``; NaN stays NaN."""
    for i in range(x.size):
        y[i] = pointwise.relu(x[i])


@loop("void(f4[::1], f4[::1], f4[::1])")
def relu_grad(y, gy, gx):
    """Computes ``gx = gy * (y > 0)``."""
    for i in range(y.size):
        gx[i] = pointwise.relu_grad(y[i], gy[i])


@loop("void(f4[::1], f4[::1], f4[::1], f4)")
def leaky_relu(condition, x, y, slope):
    """Computes ``y = x``, times the slope where the condition is not positive."""
    for i in range(x.size):
        y[i] = pointwise.leaky_relu(condition[i], x[i], slope)


@loop("void(f4[::1], f4[::1], f4)")
def clipped_relu(x, y, cap):
    """Computes ``y = min(max(x, 0), cap)``; NaN stays NaN."""
    for i in range(x.size):
        y[i] = pointwise.clipped_relu(x[i], cap)


@loop("void(f4[::1], f4[::1], f4[::1], f4)")
def clipped_relu_grad(x, gy, gx, cap):
    """Computes ``gx = gy * (0 < x < cap)``."""
    for i in range(x.size):
        gx[i] = pointwise.clipped_relu_grad(x[i], gy[i], cap)


@loop("void(f4[::1], f4[::1])")
def tanh(x, y):
    """Computes the hyperbolic tangent."""
    for i in range(x.size):
        y[i] = exponential.tanh(x[i])


@loop("void(f4[::1], f4[::1], f4[::1])")
def tanh_grad(y, gy, gx):
    """Computes ``gx = gy * (1 - y^2)``."""
    for i in range(y.size):
        gx[i] = pointwise.tanh_grad(y[i], gy[i])


@loop("void(f4[::1], f4[::1])")
def sigmoid(x, y):
    """Computes the logistic sigmoid."""
    for i in range(x.size):
        y[i] = exponential.sigmoid(x[i])


@loop("void(f4[::1], f4[::1], f4[::1])")
def sigmoid_grad(y, gy, gx):
    """Computes ``gx = gy * y * (1 - y)``."""
    for i in range(y.size):
        gx[i] = pointwise.sigmoid_grad(y[i], gy[i])


@loop("void(f4[::1], f4[::1], f4)")
def elu(x, y, alpha):
    """Computes ``y = x``, and ``alpha * (exp(x) - 1)`` where that is not positive."""
    for i in range(x.size):
        y[i] = pointwise.elu(x[i], alpha)


@loop("void(f4[::1], f4[::1], f4[::1], f4)")
def elu_grad(condition, y, gx, alpha):
    """Computes ``gx = y + alpha``, and 1 where the condition is positive."""
    for i in range(y.size):
        gx[i] = pointwise.elu_grad(condition[i], y[i], alpha)


@loop("void(f4[::1], f4[::1], f4[::1])")
def multiply(x, mask, y):
    """Computes ``y = x * mask``."""
    for i in range(x.size):
        y[i] = x[i] * mask[i]
