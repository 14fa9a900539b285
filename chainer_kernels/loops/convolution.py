"""Loops of convolutions: what is copied around the products of matrices."""

import numpy as np

from chainer_kernels.compiling import loop

# A literal number would take the arithmetic to float64.
ZERO = np.float32(0)


@loop("void(i8, i8, f4[::1], i8, i8, i8, i8[::1], i8[::1], i8, i8, f4[::1])")
def gather(start, end, x, image, channels, channel, positions, taps, run, first, col):
    """Copies what windows read: row i of ``col`` is window ``first + i`` of all.

    Args:
        start: The first row.
        end: The one behind the last.
        x: (N, positions, channels), flattened.
        image: Elements of a sample.
        channels: Elements of a position.
        channel: The first to copy.
        positions: Where windows are, in each sample.
        taps: Where in a window to copy from.
        run: How many elements from there.
        first: The window of row 0, counted through all samples.
        col: (rows, taps, run), flattened.
    """
    position = (first + start) % positions.size
    sample = (first + start) // positions.size * image + channel
    row = start * taps.size * run
    for _ in range(start, end):
        window = sample + positions[position] * channels
        for tap in range(taps.size):
            begin = window + taps[tap] * channels
            source = x[begin : begin + run]
            target = col[row : row + run]
            for i in range(target.size):
                target[i] = source[i]
            row += run
        position += 1
        if position == positions.size:
            position = 0
            sample += image


@loop("void(i8, i8, f4[:, ::1], f4[::1], b1, i8, i8, i8, i8[::1], i8, f4[::1])")
def scatter(start, end, rows, b, relu, image, channels, channel, positions, first, y):
    """Copies rows to their positions, and adds a bias.

    Args:
        start: The first row.
        end: The one behind the last.
        rows: (rows, elements to write).
        b: The bias of each of these elements.
        relu: Whether what is negative becomes zero.
        image: Elements of a sample.
        channels: Elements of a position.
        channel: The first to write.
        positions: Where the rows belong, in each sample.
        first: The position of row 0, counted through all samples.
        y: (N, positions, channels), flattened.
    """
    position = (first + start) % positions.size
    sample = (first + start) // positions.size * image + channel
    for row in range(start, end):
        begin = sample + positions[position] * channels
        source = rows[row]
        target = y[begin : begin + b.size]
        if relu:
            for i in range(b.size):
                value = source[i] + b[i]
                target[i] = ZERO if value <= ZERO else value
        else:
            for i in range(b.size):
                target[i] = source[i] + b[i]
        position += 1
        if position == positions.size:
            position = 0
            sample += image


@loop("void(f4[:, :, ::1], i8[::1], i8, i8, f4[::1])")
def turn(weights, order, out_stride, tap_stride, turned):
    """Copies weights (O, C, taps) to rows of channels, one for each output and tap.

    Args:
        weights: (O, C, taps).
        order: The taps, in the order in which they are wanted.
        out_stride: The distance of rows of consecutive outputs.
        tap_stride: The distance of rows of consecutive taps.
        turned: Where the rows go, flattened.
    """
    channels = weights.shape[1]
    for out in range(weights.shape[0]):
        for i in range(order.size):
            begin = out * out_stride + i * tap_stride
            target = turned[begin : begin + channels]
            tap = order[i]
            for c in range(target.size):
                target[c] = weights[out, c, tap]


@loop("void(f4[:, :, ::1], f4[:, :, ::1], b1)")
def turn_back(turned, weights, accumulate):
    """Copies (O, taps, C) to (O, C, taps), or adds it."""
    for out in range(weights.shape[0]):
        for c in range(weights.shape[1]):
            target = weights[out, c]
            if accumulate:
                for tap in range(target.size):
                    target[tap] += turned[out, tap, c]
            else:
                for tap in range(target.size):
                    target[tap] = turned[out, tap, c]


@loop("void(f4[:, :, ::1])")
def turn_in_place(turned):
    """Turns (O, taps, C) to (O, C, taps), where it is."""
    n_taps, n_channels = turned.shape[1:]
    row = np.empty(n_taps * n_channels, np.float32)
    for out in range(turned.shape[0]):
        flat = turned[out].reshape(row.size)
        row[:] = flat
        for c in range(n_channels):
            for tap in range(n_taps):
                flat[c * n_taps + tap] = row[tap * n_channels + c]
