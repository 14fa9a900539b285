"""ReLU of some columns of a matrix, which other columns lie between.

A matrix product that is computed some columns at a time leaves them in an array of
their own. These loops take them from there to their place, and back, without another
pass over memory.
"""

from chainer_kernels.compiling import loop
from chainer_kernels.loops import pointwise


@loop("void(f4[:, ::1], f4[::1], f4[:, ::1], i8)")
def add_relu(z, b, y, start):
    """Computes ``y[:, start:start + n] = max(z + b, 0)`` for the n columns of z."""
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            y[i, start + j] = pointwise.relu(z[i, j] + b[j])


@loop("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], i8)")
def relu_grad(y, gy, gz, start):
    """Computes ``gz = gy * (y > 0)``, of the columns from ``start`` on."""
    for i in range(gz.shape[0]):
        for j in range(gz.shape[1]):
            gz[i, j] = pointwise.relu_grad(y[i, start + j], gy[i, start + j])
