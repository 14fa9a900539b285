"""Loops of convolutions in groups of so few channels that they are no matrices."""

import numpy as np

from chainer_kernels.compiling import loop

# A literal number would take the arithmetic to float64.
ZERO = np.float32(0)


@loop(
    "void(i8, i8, f4[::1], i8, i8[::1], i8[::1], f4[:, ::1], f4[::1], f4[::1], i8,"
    " i8[::1])"
)
def convolve(start, end, x, x_image, inputs, taps, weights, b, y, y_image, outputs):
    """Adds up the outputs of windows, all channels at once.

    Args:
        start: The first window, counted through all samples.
        end: The one behind the last.
        x: Rows as long as b, at least one for each position, flattened.
        x_image: Elements of a sample of x.
        inputs: Where in a sample of x its windows begin.
        taps: Where in a window the rows begin that it reads.
        weights: (taps, channels), the factors of each row, element by element.
        b: The bias.
        y: (N, positions, channels), flattened.
        y_image: Elements of a sample of y.
        outputs: Where in a sample of y its windows belong.
    """
    for i in range(start, end):
        sample, window = i // outputs.size, i % outputs.size
        begin = sample * y_image + outputs[window]
        target = y[begin : begin + b.size]
        for c in range(target.size):
            target[c] = b[c]
        corner = sample * x_image + inputs[window]
        for tap in range(taps.size):
            begin = corner + taps[tap]
            source = x[begin : begin + b.size]
            factors = weights[tap]
            for c in range(target.size):
                target[c] += source[c] * factors[c]


@loop(
    "void(i8, i8, i8, f4[::1], i8, i8[::1], i8[::1], f4[::1], i8, i8[::1],"
    " f4[:, :, ::1])"
)
def weight_gradients(
    start, end, n_windows, x, x_image, inputs, taps, gy, y_image, outputs, sums
):
    """Adds up the gradients of weights, each of some parts of all windows.

    Args:
        start: The first part.
        end: The one behind the last.
        n_windows: Windows of all samples; they are cut into parts that are about equal.
        x: Rows of channels, at least one for each position, flattened.
        x_image: Elements of a sample of x.
        inputs: Where in a sample of x its windows begin.
        taps: Where in a window the rows begin that it reads.
        gy: (N, positions, channels), flattened.
        y_image: Elements of a sample of gy.
        outputs: Where in a sample of gy its windows belong.
        sums: (parts, taps, channels).
    """
    n_parts, _, channels = sums.shape
    for part in range(start, end):
        for tap in range(taps.size):
            for c in range(channels):
                sums[part, tap, c] = ZERO
        for i in range(n_windows * part // n_parts, n_windows * (part + 1) // n_parts):
            sample, window = i // outputs.size, i % outputs.size
            begin = sample * y_image + outputs[window]
            right = gy[begin : begin + channels]
            corner = sample * x_image + inputs[window]
            for tap in range(taps.size):
                begin = corner + taps[tap]
                left = x[begin : begin + channels]
                target = sums[part, tap]
                for c in range(right.size):
                    target[c] += left[c] * right[c]
