"""Loops of normalizations: sums along rows and columns, and what is made of them.

Activations are matrices in memory. Where channels come last each column belongs to a
channel; otherwise each row does, a sample's pixels of one channel.

::

                 columns                                  rows
    x            (samples * pixels, C)                    (samples * C, pixels)
    statistics   of each column within blocks of rows     of each row
    parameters   (groups, C), a group being equally       (rows,)
                 many rows
"""

import math

import numpy as np

from chainer_kernels.compiling import loop

ZERO, ONE = np.float32(0), np.float32(1)


@loop("void(i8, i8, f4[:, ::1], i8[::1], f4[:, ::1], f4[:, ::1])")
def column_moments(first, last, x, starts, means, squares):
    """Computes means, and sums of squared distances from them, within blocks.

    Block ``b`` is ``x[starts[b]:starts[b + 1]]``; it is in the cache the second time.
    """
    for b in range(first, last):
        block = x[starts[b] : starts[b + 1]]
        mean = means[b]
        square = squares[b]
        mean[:] = ZERO
        square[:] = ZERO
        for r in range(block.shape[0]):
            row = block[r]
            for c in range(mean.size):
                mean[c] += row[c]
        share = np.float32(1 / block.shape[0])
        for c in range(mean.size):
            mean[c] *= share
        for r in range(block.shape[0]):
            row = block[r]
            for c in range(mean.size):
                distance = row[c] - mean[c]
                square[c] += distance * distance


@loop("void(i8, i8, f4[:, ::1], i8[::1], f4[:, ::1])")
def column_sums(first, last, x, starts, sums):
    """Computes sums within blocks."""
    for b in range(first, last):
        block = x[starts[b] : starts[b + 1]]
        total = sums[b]
        total[:] = ZERO
        for r in range(block.shape[0]):
            row = block[r]
            for c in range(total.size):
                total[c] += row[c]


@loop("void(i8[::1], f4[:, :, ::1], f4[:, :, ::1], f8[:, ::1], f8[:, ::1])")
def join_moments(counts, means, squares, mean, var):
    """Computes means and variances of groups from those of blocks.

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
    sample variances", 1979. Two passes over each block are as exact as two over all.

    Args:
        counts: How many numbers the blocks of a group have.
        means: (groups, blocks, C).
        squares: Sums of squared distances from them.
        mean: Written: means, (groups, C); zeros before.
        var: Written: variances, (groups, C); zeros before.
    """
    n = counts.sum()
    for g in range(mean.shape[0]):
        total = mean[g]
        square = var[g]
        for b in range(counts.size):
            share = counts[b] / n
            row = means[g, b]
            for c in range(row.size):
                total[c] += share * row[c]
        for b in range(counts.size):
            share = counts[b] / n
            row = means[g, b]
            distances = squares[g, b]
            for c in range(row.size):
                distance = row[c] - total[c]
                square[c] += distances[c] / n + share * (distance * distance)


@loop("void(f4[:, ::1], f4[::1], f4[::1])", is_sum=True)
def row_moments(x, means, squares):
    """Computes means, and sums of squared distances from them."""
    for r in range(x.shape[0]):
        row = x[r]
        total = ZERO
        for i in range(row.size):
            total += row[i]
        mean = total / np.float32(row.size)
        square = ZERO
        for i in range(row.size):
            distance = row[i] - mean
            square += distance * distance
        means[r] = mean
        squares[r] = square


@loop(
    "void(i8, i8, f4[:, ::1], f4[:, ::1], f4[:, ::1], i8[::1], f4[:, ::1], f4[:, ::1])"
)
def column_products(first, last, x, gy, means, starts, sums, products):
    """Computes sums of ``gy`` and of ``gy * (x - mean)`` within blocks."""
    blocks = (starts.size - 1) // means.shape[0]
    for b in range(first, last):
        block = x[starts[b] : starts[b + 1]]
        gradients = gy[starts[b] : starts[b + 1]]
        mean = means[b // blocks]
        total = sums[b]
        product = products[b]
        total[:] = ZERO
        product[:] = ZERO
        for r in range(block.shape[0]):
            row = block[r]
            gradient = gradients[r]
            for c in range(mean.size):
                total[c] += gradient[c]
                product[c] += gradient[c] * (row[c] - mean[c])


@loop(
    "void(f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[::1])",
    is_sum=True,
)
def row_products(x, gy, means, sums, products):
    """Computes sums of ``gy`` and of ``gy * (x - mean)``."""
    for r in range(x.shape[0]):
        row = x[r]
        gradient = gy[r]
        mean = means[r]
        total = ZERO
        product = ZERO
        for i in range(row.size):
            total += gradient[i]
            product += gradient[i] * (row[i] - mean)
        sums[r] = total
        products[r] = product


@loop("void(i8, i8, f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1])")
def scale_columns(first, last, x, means, scales, shifts, y):
    """Computes ``y = (x - mean) * scale + shift``."""
    rows = x.shape[0] // means.shape[0]
    for r in range(first, last):
        group = r // rows
        row = x[r]
        mean = means[group]
        scale = scales[group]
        shift = shifts[group]
        out = y[r]
        for c in range(row.size):
            out[c] = (row[c] - mean[c]) * scale[c] + shift[c]


@loop("void(f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[::1])")
def scale_rows(x, y, means, scales, shifts):
    """Computes ``y = (x - mean) * scale + shift``."""
    for r in range(x.shape[0]):
        row = x[r]
        out = y[r]
        mean = means[r]
        scale = scales[r]
        shift = shifts[r]
        for i in range(row.size):
            out[i] = (row[i] - mean) * scale + shift


@loop(
    "void(i8, i8, f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1],"
    " f4[:, ::1], f4[:, ::1])"
)
def combine_columns(first, last, x, gy, means, scales, slopes, shifts, gx):
    """Computes ``gx = gy * scale + ((x - mean) * slope + shift)``.

    So each product has one sum that it can go into without being rounded, wherever
    this is computed: see :mod:`~chainer_kernels.loops.normalized`.
    """
    rows = x.shape[0] // means.shape[0]
    for r in range(first, last):
        group = r // rows
        row = x[r]
        gradient = gy[r]
        mean = means[group]
        scale = scales[group]
        slope = slopes[group]
        shift = shifts[group]
        out = gx[r]
        for c in range(row.size):
            out[c] = gradient[c] * scale[c] + ((row[c] - mean[c]) * slope[c] + shift[c])


@loop("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[::1], f4[::1])")
def combine_rows(x, gy, gx, means, scales, slopes, shifts):
    """Computes ``gx = gy * scale + ((x - mean) * slope + shift)``.

    So each product has one sum that it can go into without being rounded, wherever
    this is computed: see :mod:`~chainer_kernels.loops.normalized`.
    """
    for r in range(x.shape[0]):
        row = x[r]
        gradient = gy[r]
        out = gx[r]
        mean = means[r]
        scale = scales[r]
        slope = slopes[r]
        shift = shifts[r]
        for i in range(row.size):
            out[i] = gradient[i] * scale + ((row[i] - mean) * slope + shift)


@loop(
    "void(f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[::1], f4[::1], f4)",
    is_sum=True,
)
def normalize_rows(x, y, means, inv_stds, gamma, beta, eps):
    """Normalizes each row; ``gamma`` and ``beta`` have an element for each column."""
    for r in range(x.shape[0]):
        row = x[r]
        out = y[r]
        n = np.float32(row.size)
        total = ZERO
        for c in range(row.size):
            total += row[c]
        mean = total / n
        square = ZERO
        for c in range(row.size):
            distance = row[c] - mean
            square += distance * distance
        inv_std = ONE / math.sqrt(square / n + eps)
        for c in range(row.size):
            out[c] = (row[c] - mean) * inv_std * gamma[c] + beta[c]
        means[r] = mean
        inv_stds[r] = inv_std


@loop(
    "void(i8, i8, f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[::1], i8[::1],"
    " f4[:, ::1], f4[:, ::1], f4[:, ::1])",
    is_sum=True,
)
def normalize_rows_grad(
    first, last, x, gy, means, inv_stds, gamma, starts, gx, ggammas, gbetas
):
    """Computes the gradients of :func:`normalize_rows`.

    Gradients of ``gamma`` and ``beta`` are added up within blocks of rows.
    """
    n = np.float32(x.shape[1])
    for b in range(first, last):
        ggamma = ggammas[b]
        gbeta = gbetas[b]
        ggamma[:] = ZERO
        gbeta[:] = ZERO
        for r in range(starts[b], starts[b + 1]):
            row = x[r]
            gradient = gy[r]
            out = gx[r]
            mean = means[r]
            inv_std = inv_stds[r]
            total = ZERO
            product = ZERO
            for c in range(row.size):
                x_hat = (row[c] - mean) * inv_std
                scaled = gradient[c] * gamma[c]
                total += scaled
                product += scaled * x_hat
                ggamma[c] += gradient[c] * x_hat
                gbeta[c] += gradient[c]
            total /= n
            product /= n
            for c in range(row.size):
                x_hat = (row[c] - mean) * inv_std
                out[c] = inv_std * (gradient[c] * gamma[c] - total - x_hat * product)
