"""Loops of softmax: rows that are normalized, or the slices (classes, pixels)."""

import numpy as np
from numba import njit

from chainer_kernels.compiling import loop
from chainer_kernels.loops.exponential import exp

ZERO, ONE = np.float32(0), np.float32(1)
LOWEST = np.float32(-np.inf)
LOWEST_BITS = np.int32(-(2**31))
SIGN, MAGNITUDE = np.int32(31), np.int32(2**31 - 1)


@njit(error_model="numpy")
def ordered(bits):
    """Returns the bits of a float32 as an integer in the order of the numbers, or back.

    The greatest integer of a row is found in vector instructions. The greatest number
    is not: what compares with no number forbids another order.
    """
    return np.int32(bits ^ ((bits >> SIGN) & MAGNITUDE))


@loop("void(f4[:, ::1], f4[:, ::1], f4[::1], f4[::1])", is_sum=True)
def softmax_rows(x, y, highest, totals):
    """Computes ``y = exp(x - highest) / total`` for each row.

    The total is that of the exponentials, ``highest`` the greatest number of the row.
    """
    for r in range(x.shape[0]):
        row = x[r]
        out = y[r]
        greatest = LOWEST_BITS
        bits = row.view(np.int32)
        for c in range(bits.size):
            greatest = max(greatest, ordered(bits[c]))
        high = np.int32(ordered(greatest)).view(np.float32)
        total = ZERO
        for c in range(row.size):
            out[c] = exp(row[c] - high)
            total += out[c]
        share = ONE / total
        for c in range(row.size):
            out[c] *= share
        highest[r] = high
        totals[r] = total


@loop("void(f4[:, :, ::1], f4[:, :, ::1], f4[:, ::1], f4[:, ::1])")
def softmax_slices(x, y, highest, totals):
    """Computes the same along the second of three axes."""
    for n in range(x.shape[0]):
        total = totals[n]
        high = highest[n]
        total[:] = ZERO
        high[:] = LOWEST
        for c in range(x.shape[1]):
            row = x[n, c]
            for i in range(row.size):
                high[i] = row[i] if row[i] > high[i] else high[i]
        for c in range(x.shape[1]):
            row = x[n, c]
            out = y[n, c]
            for i in range(row.size):
                out[i] = exp(row[i] - high[i])
                total[i] += out[i]
        for c in range(x.shape[1]):
            out = y[n, c]
            for i in range(out.size):
                out[i] /= total[i]


@loop("void(f4[:, ::1], f4[:, ::1], f4[:, ::1])", is_sum=True)
def softmax_grad_rows(y, gy, gx):
    """Computes ``gx = y * (gy - sum(y * gy))`` for each row."""
    for r in range(y.shape[0]):
        row = y[r]
        gradient = gy[r]
        out = gx[r]
        total = ZERO
        for c in range(row.size):
            total += row[c] * gradient[c]
        for c in range(row.size):
            out[c] = row[c] * (gradient[c] - total)


@loop("void(f4[:, :, ::1], f4[:, :, ::1], f4[:, :, ::1], f4[:, ::1])")
def softmax_grad_slices(y, gy, gx, scratch):
    """Computes the same along the second of three axes."""
    for n in range(y.shape[0]):
        total = scratch[n]
        total[:] = ZERO
        for c in range(y.shape[1]):
            row = y[n, c]
            gradient = gy[n, c]
            for i in range(row.size):
                total[i] += row[i] * gradient[i]
        for c in range(y.shape[1]):
            row = y[n, c]
            gradient = gy[n, c]
            out = gx[n, c]
            for i in range(row.size):
                out[i] = row[i] * (gradient[i] - total[i])


@loop("void(f4[:, ::1], f4[:, ::1], f4[:, ::1])", is_sum=True)
def log_softmax_grad_rows(y, gy, gx):
    """Computes ``gx = gy - exp(y) * sum(gy)`` for each row."""
    for r in range(y.shape[0]):
        row = y[r]
        gradient = gy[r]
        out = gx[r]
        total = ZERO
        for c in range(row.size):
            total += gradient[c]
        for c in range(row.size):
            out[c] = gradient[c] - exp(row[c]) * total
