"""Batch normalization of one number, for loops that go on with it.

Here alone a product may be added to in one rounding, as in the loops of
:mod:`~chainer_kernels.loops.normalization`, whose bits these have. What follows rounds
each operation.
"""

import numpy as np
from numba import njit

from chainer_kernels.compiling import loop
from chainer_kernels.loops import normalization

_inlined = njit(error_model="numpy", fastmath={"contract"})

#: The loops that go on with what generated ones have left in the cache. They are called
#: as they are, because the order of additions depends on how they were compiled.
row_products = normalization.row_products.compiled

#: Elements that generated loops leave there.
BLOCK_SIZE = 1 << 14

ONE = np.int64(1)


@_inlined
def normalized(x, mean, scale, shift):
    """Returns (x - mean) * scale + shift."""
    return (x - mean) * scale + shift


@_inlined
def combined(gy, x, mean, scale, slope, rest):
    """Returns gy * scale + ((x - mean) * slope + rest)."""
    return gy * scale + ((x - mean) * slope + rest)


@loop("void(f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[::1])")
def add_column_products(x, gy, mean, total, product):
    """Adds ``gy`` and ``gy * (x - mean)`` to sums, row by row."""
    for r in range(x.shape[0]):
        row = x[r]
        gradient = gy[r]
        for c in range(mean.size):
            total[c] += gradient[c]
            product[c] += gradient[c] * (row[c] - mean[c])


column_products = add_column_products.compiled
