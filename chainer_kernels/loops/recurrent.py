"""Loops of recurrent cells: one step of some rows.

::

    gates       x Wx^T, replaced by the gates that it becomes: [ i | f | o | a ]
    recurrent   h Wh^T, in the same blocks
    bias        added to their sum
    c, h        the state, replaced

Each inner loop writes one array: with more, LLVM gives up on vector instructions. Rows
are in the cache meanwhile.
"""

import numpy as np

from chainer_kernels.compiling import loop
from chainer_kernels.loops.exponential import sigmoid, tanh
from chainer_kernels.loops.lstm_rows import gradients, next_state, put_apart

ZERO, ONE = np.float32(0), np.float32(1)


@loop("void(f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[::1])")
def lstm(gates, recurrent, c, h, bias):
    """Computes the gates from their sums, and the next state."""
    n = c.shape[1]
    n_sigmoids = 3 * n
    for row in range(c.shape[0]):
        sums, others = gates[row], recurrent[row]
        for k in range(n_sigmoids):
            sums[k] = sigmoid(sums[k] + others[k] + bias[k])
        a, other_a, bias_a = sums[n_sigmoids:], others[n_sigmoids:], bias[n_sigmoids:]
        for k in range(n):
            a[k] = tanh(a[k] + other_a[k] + bias_a[k])
        i, f, o = sums[:n], sums[n : 2 * n], sums[2 * n : n_sigmoids]
        c_, h_ = c[row], h[row]
        for k in range(n):
            c_[k] = f[k] * c_[k] + i[k] * a[k]
        for k in range(n):
            h_[k] = o[k] * tanh(c_[k])


@loop("void(f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])")
def lstm_grad(gates, c, gh, gc, g_gates):
    """Computes the gradients of the sums, and in ``gc`` that of the cells before.

    Args:
        gates: Activated gates of the step.
        c: The cells before it.
        gh: Gradient of the states after it.
        gc: Gradient of the cells after the step, replaced by that of the cells before.
        g_gates: The result.
    """
    n = c.shape[1]
    tanh_c = np.empty(n, np.float32)
    for row in range(c.shape[0]):
        gate, g_gate, c_ = gates[row], g_gates[row], c[row]
        i, f, o, a = gate[:n], gate[n : 2 * n], gate[2 * n : 3 * n], gate[3 * n :]
        gi, gf = g_gate[:n], g_gate[n : 2 * n]
        go, ga = g_gate[2 * n : 3 * n], g_gate[3 * n :]
        gh_, gc_ = gh[row], gc[row]
        for k in range(n):
            tanh_c[k] = tanh(f[k] * c_[k] + i[k] * a[k])
        for k in range(n):
            go[k] = gh_[k] * tanh_c[k] * o[k] * (ONE - o[k])
        for k in range(n):
            gc_[k] += gh_[k] * o[k] * (ONE - tanh_c[k] * tanh_c[k])
        for k in range(n):
            gi[k] = gc_[k] * a[k] * i[k] * (ONE - i[k])
        for k in range(n):
            gf[k] = gc_[k] * c_[k] * f[k] * (ONE - f[k])
        for k in range(n):
            ga[k] = gc_[k] * i[k] * (ONE - a[k] * a[k])
        for k in range(n):
            gc_[k] *= f[k]


@loop("void(f4[:,::1], f4[:,::1], f4[:,::1], f4[::1])")
def gru(gates, recurrent, h, bias):
    """Computes the gates ``[ r | z | a ]`` from their sums, and the next state.

    The bias has been added to ``gates``; to ``recurrent`` it is here.
    """
    n = h.shape[1]
    for row in range(h.shape[0]):
        sums, others, h_ = gates[row], recurrent[row], h[row]
        for k in range(3 * n):
            others[k] += bias[k]
        for k in range(2 * n):
            sums[k] = sigmoid(sums[k] + others[k])
        r, z, a, other_a = sums[:n], sums[n : 2 * n], sums[2 * n :], others[2 * n :]
        for k in range(n):
            a[k] = tanh(a[k] + r[k] * other_a[k])
        for k in range(n):
            h_[k] = (ONE - z[k]) * a[k] + z[k] * h_[k]


@loop("void(f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])")
def gru_grad(gates, recurrent_a, h, gh, g_gates, g_recurrent):
    """Computes the gradients of the sums, and in ``gh`` a part of that of ``h``.

    Args:
        gates: Activated gates of the step.
        recurrent_a: The last block of the product with the states, with its bias.
        h: The states before the step.
        gh: Gradient of the states after the step. It is replaced by that of the states
            before it, without the part that comes through the product.
        g_gates: The result for the inputs' sums.
        g_recurrent: The result for the states' sums.
    """
    n = h.shape[1]
    for row in range(h.shape[0]):
        gate, other_a, h_, gh_ = gates[row], recurrent_a[row], h[row], gh[row]
        g_gate, g_other = g_gates[row], g_recurrent[row]
        g_other_a = g_other[2 * n :]
        r, z, a = gate[:n], gate[n : 2 * n], gate[2 * n :]
        gr, gz, ga = g_gate[:n], g_gate[n : 2 * n], g_gate[2 * n :]
        for k in range(n):
            gz[k] = gh_[k] * (h_[k] - a[k]) * z[k] * (ONE - z[k])
        for k in range(n):
            ga[k] = gh_[k] * (ONE - z[k]) * (ONE - a[k] * a[k])
        for k in range(n):
            gr[k] = ga[k] * other_a[k] * r[k] * (ONE - r[k])
        for k in range(n):
            gh_[k] *= z[k]
        for k in range(2 * n):
            g_other[k] = g_gate[k]
        for k in range(n):
            g_other_a[k] = ga[k] * r[k]


@loop("void(f4[:,::1], f4[:,::1], f4[:,::1], f4[::1])")
def rnn_tanh(gates, recurrent, h, bias):
    """Computes the next state, also into ``gates``."""
    for row in range(h.shape[0]):
        sums, others, h_ = gates[row], recurrent[row], h[row]
        for k in range(h.shape[1]):
            sums[k] = tanh(sums[k] + others[k] + bias[k])
        for k in range(h.shape[1]):
            h_[k] = sums[k]


@loop("void(f4[:,::1], f4[:,::1], f4[:,::1], f4[::1])")
def rnn_relu(gates, recurrent, h, bias):
    """Computes the next state, also into ``gates``."""
    for row in range(h.shape[0]):
        sums, others, h_ = gates[row], recurrent[row], h[row]
        for k in range(h.shape[1]):
            total = sums[k] + others[k] + bias[k]
            sums[k] = ZERO if total <= ZERO else total
        for k in range(h.shape[1]):
            h_[k] = sums[k]


@loop("void(f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])")
def lstm_cell(x, c, c_next, h):
    """Computes Chainer's LSTM, whose sums ``(a, i, f, o)`` lie side by side."""
    n = c.shape[1]
    sums = np.empty(4 * n, np.float32)
    a, others = sums[:n], sums[n:]
    i, f, o = others[:n], others[n : 2 * n], others[2 * n :]
    for row in range(x.shape[0]):
        x_, c_, c_next_, h_ = x[row], c[row], c_next[row], h[row]
        put_apart(x_, a, i, f, o)
        for k in range(n):
            a[k] = tanh(a[k])
        for k in range(3 * n):
            others[k] = sigmoid(others[k])
        next_state(a, i, f, o, c_, c_next_, h_)


@loop("void(f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])")
def lstm_cell_grad(x, c, c_next, gh, gc, gx):
    """Computes the gradient of ``x``, and in ``gc`` that of ``c``.

    Args:
        x: The sums.
        c: The cells before.
        c_next: The cells after.
        gh: Gradient of the output.
        gc: Gradient of the cells after; then of those before.
        gx: The result.
    """
    n = c.shape[1]
    sums = np.empty(4 * n, np.float32)
    a, others = sums[:n], sums[n:]
    i, f, o = others[:n], others[n : 2 * n], others[2 * n :]
    tanh_c = np.empty(n, np.float32)
    for row in range(x.shape[0]):
        x_, gx_, c_, c_next_ = x[row], gx[row], c[row], c_next[row]
        gh_, gc_ = gh[row], gc[row]
        put_apart(x_, a, i, f, o)
        for k in range(n):
            a[k] = tanh(a[k])
        for k in range(3 * n):
            others[k] = sigmoid(others[k])
        gradients(a, i, f, o, c_, c_next_, gh_, gc_, gx_, tanh_c)
