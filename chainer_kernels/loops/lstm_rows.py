"""One row of an LSTM whose sums are in Chainer's order: the four of a cell in a line.

::

    sums of a row    a0 i0 f0 o0  a1 i1 f1 o1 ...
    apart            a0 a1 ...   i0 i1 ...   f0 f1 ...   o0 o1 ...

The loops that use these functions contain their code, so they have the same bits.
"""

import numpy as np
from numba import njit

from chainer_kernels.loops.exponential import tanh

ONE = np.float32(1)


@njit(inline="always")
def put_apart(sums, a, i, f, o):
    """Writes the sums of a row in four blocks."""
    for k in range(a.size):
        a[k], i[k] = sums[4 * k], sums[4 * k + 1]
        f[k], o[k] = sums[4 * k + 2], sums[4 * k + 3]


@njit(inline="always")
def next_state(a, i, f, o, c, c_next, h):
    """Computes the next cells and the output from the gates."""
    for k in range(a.size):
        c_next[k] = a[k] * i[k] + f[k] * c[k]
    for k in range(a.size):
        h[k] = o[k] * tanh(c_next[k])


@njit(inline="always")
def gradients(a, i, f, o, c, c_next, gh, gc, g_sums, tanh_c):
    """Computes the gradients of the sums, and in ``gc`` that of the cells before.

    Args:
        a: The candidates.
        i: The gate of the candidates.
        f: The gate of the cells before.
        o: The gate of the output.
        c: The cells before.
        c_next: The cells after.
        gh: Gradient of the output.
        gc: Gradient of the cells after, replaced by that of the cells before.
        g_sums: The result.
        tanh_c: Overwritten.
    """
    for k in range(a.size):
        tanh_c[k] = tanh(c_next[k])
    for k in range(a.size):
        gc[k] += gh[k] * o[k] * (ONE - tanh_c[k] * tanh_c[k])
    for k in range(a.size):
        tanh_c[k] = gh[k] * tanh_c[k] * o[k] * (ONE - o[k])
    for k in range(a.size):
        g_sums[4 * k] = gc[k] * i[k] * (ONE - a[k] * a[k])
        g_sums[4 * k + 1] = gc[k] * a[k] * i[k] * (ONE - i[k])
        g_sums[4 * k + 2] = gc[k] * c[k] * f[k] * (ONE - f[k])
        g_sums[4 * k + 3] = tanh_c[k]
    for k in range(a.size):
        gc[k] *= f[k]
