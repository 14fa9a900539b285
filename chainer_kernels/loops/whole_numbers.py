"""Loops from float32 to whole numbers of 8 bits, and from their sums back."""

import numpy as np

from chainer_kernels.compiling import loop

F32, I32, U8 = np.float32, np.int32, np.uint8
HALF, ZERO, NAN = F32(0.5), F32(0), F32(np.nan)


@loop("void(f4[:, ::1], u1[:, ::1], f4[::1], i4[::1], f4, i4, i4)")
def to_whole(x, whole, scales, sums, scale, zero, highest):
    """Writes the nearest whole numbers, ``floor(x / scale + 1/2) + zero`` in range.

    Args:
        x: (N, I).
        whole: (N, I), written.
        scales: (N,), written: ``scale``, or NaN for a row with a NaN in it.
        sums: (N,), written: of ``whole - zero``.
        scale: The distance of two neighbours.
        zero: The whole number that stands for 0.
        highest: The greatest whole number; the least is 0.
    """
    zero_f, highest_f = F32(zero), F32(highest)
    for n in range(len(x)):
        row, out = x[n], whole[n]
        total, n_bad = I32(0), I32(0)
        for i in range(row.size):
            value = row[i]
            n_bad = I32(n_bad + I32(value != value))
            value = F32(np.floor(F32(F32(value / scale) + HALF)) + zero_f)
            # A NaN becomes 0: its conversion to an integer would be undefined.
            value = value if value > ZERO else ZERO
            value = highest_f if value > highest_f else value
            number = I32(value)
            out[i] = U8(number)
            total = I32(total + number)
        sums[n] = I32(total - zero * row.size)
        scales[n] = NAN if n_bad > 0 else scale


@loop("void(i1[:, ::1], i4[::1])")
def sums_of_rows(whole, sums):
    """Writes the sum of each row."""
    for n in range(len(whole)):
        row, total = whole[n], I32(0)
        for i in range(row.size):
            total = I32(total + I32(row[i]))
        sums[n] = total


@loop("void(f4[::1], i4[::1])")
def add_to_sums(part, sums):
    """Adds whole numbers that are written as float32."""
    for i in range(part.size):
        sums[i] = I32(sums[i] + I32(part[i]))


@loop("void(i4[:, ::1], f4[::1], i4[::1], i4, f4[::1], i4[::1], i4[::1], f4[::1])")
def from_sums(sums, scales, row_sums, zero, W_scales, W_zeros, W_sums, b):
    """Turns sums of products of whole numbers into what they stand for.

    ::

        sum of (x - zero) (w - W_zero)
            = sums - zero W_sums - row_sums W_zeros,    row_sums: of x - zero

    Args:
        sums: (N, O), of products of x and w. Written in their place, as the bits of
            float32: what they stand for, times both scales, and b.
        scales: (N,), of x.
        row_sums: (N,).
        zero: The whole number that stands for 0 in x.
        W_scales: (O,).
        W_zeros: (O,), the whole numbers that stand for 0 in w.
        W_sums: (O,), of w.
        b: (O,).
    """
    for n in range(len(sums)):
        row, scale, row_sum = sums[n], scales[n], row_sums[n]
        for o in range(row.size):
            total = I32(row[o] - I32(zero * W_sums[o]) - I32(row_sum * W_zeros[o]))
            value = F32(F32(F32(total) * F32(scale * W_scales[o])) + b[o])
            row[o] = value.view(I32)
