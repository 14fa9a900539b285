"""Loops of pooling, over the tables of :mod:`chainer_kernels.pooling_windows`.

Images are (images, cells, channels) and windows (images, windows, channels). In C order
every channel is an image of its own: nothing runs in vectors there, and what belongs to
a window stays in registers.
"""

import numpy as np

from chainer_kernels.compiling import loop

ZERO, LOWEST = np.float32(0), np.float32(-np.inf)
# An index without a sign is not looked at.
TABLE = "i8[::1], u4[::1], i4[::1]"


@loop(f"void(f4[:, :, ::1], f4[:, :, ::1], i8[:, :, ::1], {TABLE})")
def maximum(x, y, indexes, starts, cells, taps):
    """Writes the first greatest of each window, or its first NaN."""
    for n in range(len(x)):
        for window in range(len(starts) - 1):
            first, last = starts[window], starts[window + 1]
            if x.shape[2] == 1:
                best, at = LOWEST, first
                for k in range(first, last):
                    value = x[n, cells[k], 0]
                    better = (value > best) | ((value != value) & (best == best))
                    best = value if better else best
                    # A load here would become a branch.
                    at = k if better else at
                y[n, window, 0] = best
                indexes[n, window, 0] = 0 if best == LOWEST else taps[at]
                continue
            bests, which = y[n, window], indexes[n, window]
            bests[:] = LOWEST
            which[:] = 0
            for k in range(first, last):
                values, tap = x[n, cells[k]], taps[k]
                for i in range(bests.size):
                    value, best = values[i], bests[i]
                    better = (value > best) | ((value != value) & (best == best))
                    bests[i] = value if better else best
                    which[i] = tap if better else which[i]


@loop(f"void(f4[:, :, ::1], f4[:, :, ::1], i8[:, :, ::1], {TABLE})")
def put_at(x, y, indexes, starts, cells, taps):
    """Adds what a window has in ``y`` to the cell of ``x`` at its index."""
    for n in range(len(x)):
        x[n] = ZERO
        for window in range(len(starts) - 1):
            first, last = starts[window], starts[window + 1]
            if x.shape[2] == 1:
                value, which = y[n, window, 0], indexes[n, window, 0]
                for k in range(first, last):
                    x[n, cells[k], 0] += value if which == taps[k] else ZERO
                continue
            values, at = y[n, window], indexes[n, window]
            for k in range(first, last):
                sums, tap = x[n, cells[k]], taps[k]
                for i in range(values.size):
                    sums[i] += values[i] if at[i] == tap else ZERO


@loop(f"void(f4[:, :, ::1], f4[:, :, ::1], i8[:, :, ::1], f4, {TABLE})")
def take_from(x, y, indexes, outside, starts, cells, taps):
    """Takes for each window the cell of ``x`` at its index, which may be outside."""
    for n in range(len(x)):
        for window in range(len(starts) - 1):
            values, at = y[n, window], indexes[n, window]
            values[:] = outside
            for k in range(starts[window], starts[window + 1]):
                found, tap = x[n, cells[k]], taps[k]
                for i in range(values.size):
                    values[i] = found[i] if at[i] == tap else values[i]


@loop(f"void(f4[:, :, ::1], f4[:, :, ::1], {TABLE})")
def add_up(x, y, starts, cells, taps):
    """Adds up the cells of each window."""
    for n in range(len(x)):
        for window in range(len(starts) - 1):
            first, last = starts[window], starts[window + 1]
            if x.shape[2] == 1:
                total = ZERO
                for k in range(first, last):
                    total += x[n, cells[k], 0]
                y[n, window, 0] = total
                continue
            sums = y[n, window]
            sums[:] = ZERO
            for k in range(first, last):
                values = x[n, cells[k]]
                for i in range(sums.size):
                    sums[i] += values[i]


@loop(f"void(f4[:, :, ::1], f4[:, :, ::1], {TABLE})")
def spread(x, y, starts, cells, taps):
    """Adds what a window has in ``y`` to each of its cells of ``x``."""
    for n in range(len(x)):
        x[n] = ZERO
        for window in range(len(starts) - 1):
            first, last = starts[window], starts[window + 1]
            if x.shape[2] == 1:
                value = y[n, window, 0]
                for k in range(first, last):
                    x[n, cells[k], 0] += value
                continue
            values = y[n, window]
            for k in range(first, last):
                sums = x[n, cells[k]]
                for i in range(values.size):
                    sums[i] += values[i]
