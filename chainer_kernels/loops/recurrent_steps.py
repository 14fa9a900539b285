"""Loops of a step of ``L.LSTM`` and ``L.GRU``: what is between its products.

::

    sums        x W^T, replaced by the gates
    others      h U^T, of the same shape; of no rows where there is no state before

Operations and their order are those of Chainer's functions one by one, and so are the
bits. The loops of GRU round each product before it is added to, as NumPy does.

Each inner loop writes one array: with more, LLVM gives up on vector instructions. Rows
are in the cache meanwhile.
"""

import numpy as np

from chainer_kernels.compiling import loop
from chainer_kernels.loops.exponential import sigmoid, tanh
from chainer_kernels.loops.lstm_rows import gradients, next_state, put_apart
from chainer_kernels.loops.pointwise import sigmoid_grad, tanh_grad

ONE = np.float32(1)


@loop("void(f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[::1])")
def lstm_step(sums, others, c, c_next, h, bias):
    """Computes the gates, which are ``[ a | i | f | o ]``, and the next state.

    Sums and the bias are in Chainer's order, in which the four of a cell lie side by
    side.
    """
    n = c.shape[1]
    n_sums = 4 * n
    apart = np.empty(n_sums, np.float32)
    sum_a, sum_others = apart[:n], apart[n:]
    sum_i, sum_f, sum_o = sum_others[:n], sum_others[n : 2 * n], sum_others[2 * n :]
    has_state = others.shape[0] > 0
    for row in range(sums.shape[0]):
        sums_, c_, c_next_, h_ = sums[row], c[row], c_next[row], h[row]
        if has_state:
            others_ = others[row]
            for k in range(n_sums):
                sums_[k] = sums_[k] + bias[k] + others_[k]
        else:
            for k in range(n_sums):
                sums_[k] += bias[k]
        put_apart(sums_, sum_a, sum_i, sum_f, sum_o)
        # From here on the row has the gates.
        a, sigmoids = sums_[:n], sums_[n:]
        i, f, o = sigmoids[:n], sigmoids[n : 2 * n], sigmoids[2 * n :]
        for k in range(n):
            a[k] = tanh(sum_a[k])
        for k in range(3 * n):
            sigmoids[k] = sigmoid(sum_others[k])
        next_state(a, i, f, o, c_, c_next_, h_)


@loop("void(f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])")
def lstm_step_grad(gates, c, c_next, gh, gc, g_sums):
    """Computes the gradients of the sums, and in ``gc`` that of the cells before.

    Args:
        gates: From :func:`lstm_step`.
        c: The cells before.
        c_next: The cells after.
        gh: Gradient of the output.
        gc: Gradient of the cells after, replaced by that of the cells before.
        g_sums: The result, in Chainer's order.
    """
    n = c.shape[1]
    tanh_c = np.empty(n, np.float32)
    for row in range(gates.shape[0]):
        gate, g_sums_, c_, c_next_ = gates[row], g_sums[row], c[row], c_next[row]
        a, i = gate[:n], gate[n : 2 * n]
        f, o = gate[2 * n : 3 * n], gate[3 * n :]
        gh_, gc_ = gh[row], gc[row]
        gradients(a, i, f, o, c_, c_next_, gh_, gc_, g_sums_, tanh_c)


@loop(
    "void(f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[::1], f4[::1])",
    is_exact=True,
)
def gru_reset(sums, others, h, reset, bias, other_bias):
    """Computes the reset gate in place of its sums, and ``reset``, times ``h``."""
    n = h.shape[1]
    for row in range(h.shape[0]):
        r, others_, h_, reset_ = sums[row], others[row], h[row], reset[row]
        for k in range(n):
            r[k] = sigmoid((r[k] + bias[k]) + (others_[k] + other_bias[k]))
        for k in range(n):
            reset_[k] = r[k] * h_[k]


@loop(
    "void(f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1],"
    " f4[::1], f4[::1], f4[::1], f4[::1])",
    is_exact=True,
)
def gru_step(
    z_sums, z_others, a_sums, a_others, h, h_next, z_bias, z_other, a_bias, a_other
):
    """Computes the gates z and a in place of their sums, and the next state."""
    n = h_next.shape[1]
    has_state = h.shape[0] > 0
    for row in range(h_next.shape[0]):
        z, a, h_next_ = z_sums[row], a_sums[row], h_next[row]
        if has_state:
            z_others_, a_others_, h_ = z_others[row], a_others[row], h[row]
            for k in range(n):
                z[k] = sigmoid((z[k] + z_bias[k]) + (z_others_[k] + z_other[k]))
            for k in range(n):
                a[k] = tanh((a[k] + a_bias[k]) + (a_others_[k] + a_other[k]))
            for k in range(n):
                h_next_[k] = z[k] * a[k] + (ONE - z[k]) * h_[k]
        else:
            for k in range(n):
                z[k] = sigmoid(z[k] + z_bias[k])
            for k in range(n):
                a[k] = tanh(a[k] + a_bias[k])
            for k in range(n):
                h_next_[k] = z[k] * a[k]


@loop(
    "void(f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])",
    is_exact=True,
)
def gru_step_grad(z, a, gh, h, gz, ga, g_before):
    """Computes the gradients of the sums of z and a, and what passes ``h`` by.

    Args:
        z: The gate.
        a: The gate.
        gh: Gradient of the state after.
        h: The state before; of no rows where there is none.
        gz: Written: gradient of the sums of z.
        ga: Written: gradient of the sums of a.
        g_before: Written, of as many rows as ``h``: the part of the gradient of ``h``
            that comes through no product.
    """
    n = gh.shape[1]
    has_state = h.shape[0] > 0
    for row in range(gh.shape[0]):
        z_, a_, gh_, gz_, ga_ = z[row], a[row], gh[row], gz[row], ga[row]
        for k in range(n):
            ga_[k] = tanh_grad(a_[k], z_[k] * gh_[k])
        if has_state:
            h_, g_before_ = h[row], g_before[row]
            for k in range(n):
                gz_[k] = sigmoid_grad(z_[k], (a_[k] - h_[k]) * gh_[k])
            for k in range(n):
                g_before_[k] = gh_[k] - z_[k] * gh_[k]
        else:
            for k in range(n):
                gz_[k] = sigmoid_grad(z_[k], a_[k] * gh_[k])


@loop(
    "void(f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])",
    is_exact=True,
)
def gru_reset_grad(r, h, g_reset, gr, g_before):
    """Computes the gradient of the sums of r, and adds what comes through r h.

    Args:
        r: The gate.
        h: The state before.
        g_reset: Gradient of r h.
        gr: Written: gradient of the sums of r.
        g_before: Gradient of ``h`` from :func:`gru_step_grad`, added to.
    """
    n = h.shape[1]
    for row in range(h.shape[0]):
        r_, h_, g_reset_ = r[row], h[row], g_reset[row]
        gr_, g_before_ = gr[row], g_before[row]
        for k in range(n):
            gr_[k] = sigmoid_grad(r_[k], g_reset_[k] * h_[k])
        for k in range(n):
            g_before_[k] += g_reset_[k] * r_[k]
