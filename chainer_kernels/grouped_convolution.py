"""Convolutions in groups of so few channels that they are no matrices.

The input is repeated until each output channel finds, in rows of its own, what it is to
be multiplied by. A depthwise convolution finds it so:

::

    2 groups of 2 channels     row 0   x0 x0 x0 x2 x2 x2
    and 3 outputs              row 1   x1 x1 x1 x3 x3 x3
                               y       y0 y1 y2 y3 y4 y5
"""

from __future__ import annotations

import math

import numpy as np

from chainer_kernels import convolution_blocks, threads
from chainer_kernels.convolution_blocks import Block, BlockPlan
from chainer_kernels.geometry import Geometry
from chainer_kernels.loops import activations
from chainer_kernels.loops import grouped_convolution as loops

#: More channels of a group are worth a product of matrices.
_FEW = 7

#: Into how many parts a long sum is cut, for the sake of its rounding.
_PARTS = 64


def are_narrow(geometry: Geometry, channels: int, outs: int) -> bool:
    """Returns whether this module computes a convolution faster than providers.

    Args:
        geometry: The convolution.
        channels: How many channels an output reads.
        outs: How many outputs all groups have.
    """
    return geometry.groups > 1 and max(channels, outs // geometry.groups) <= _FEW


def convolution(
    x: np.ndarray,
    W: np.ndarray,
    b: np.ndarray | None,
    geometry: Geometry,
    relu: bool,
) -> np.ndarray:
    """Returns the output of a convolution."""
    sizes, (outs, channels) = x.shape[1:-1], W.shape[:2]
    plan = convolution_blocks.of_outputs(geometry, len(x), W[..., 0].size, sizes)
    y = np.empty((len(x), *geometry.output_sizes(sizes), outs), np.float32)
    weights = W.reshape(outs, channels, -1).transpose(2, 1, 0)
    _convolve(x, geometry.groups, weights, plan, y, b)
    if relu:
        threads.run_slices(activations.relu, [y.reshape(-1), y.reshape(-1)])
    return y


def convolution_data(
    gy: np.ndarray, W: np.ndarray, geometry: Geometry, size: tuple[int, ...]
) -> np.ndarray:
    """Returns the gradient of a convolution's input."""
    groups, channels = geometry.groups, W.shape[1]
    plan = convolution_blocks.of_inputs(geometry, len(gy), len(W), size, gy.shape[1:-1])
    gx = np.empty((len(gy), *size, groups * channels), np.float32)
    weights = W.reshape(groups, -1, channels, math.prod(geometry.kernel))
    weights = weights.transpose(3, 1, 0, 2).reshape(len(plan.order), -1, gx.shape[-1])
    _convolve(gy, groups, weights, plan, gx, None)
    return gx


def convolution_weights(
    x: np.ndarray,
    gy: np.ndarray,
    geometry: Geometry,
    out: np.ndarray | None,
    accumulate: bool,
) -> np.ndarray:
    """Returns the gradient of a convolution's weights, written or added to ``out``."""
    outs, n_rows = gy.shape[-1], x.shape[-1] // geometry.groups
    plan = convolution_blocks.of_outputs(geometry, len(x), outs, x.shape[1:-1])
    x = _repeated(plan.padded(x), geometry.groups, outs)
    found = np.zeros((len(plan.order), n_rows, outs), np.float32)
    for block in plan.blocks:
        n_windows = len(x) * block.outputs.size
        n_parts = max(1, min(_PARTS, n_windows // _PARTS))
        taps = _rows_of_taps(block, n_rows, outs)
        sums = np.empty((n_parts, taps.size, outs), np.float32)
        threads.run_ranges(
            loops.weight_gradients,
            n_parts,
            n_windows,
            x.reshape(-1),
            math.prod(x.shape[1:]),
            block.inputs * x.shape[-1],
            taps,
            gy.reshape(-1),
            math.prod(gy.shape[1:]),
            block.outputs * outs,
            sums,
            size=n_windows * taps.size * outs // n_parts,
        )
        found[block.order] += sums.sum(axis=0).reshape(-1, n_rows, outs)
    gW = found.T.reshape(outs, n_rows, *geometry.kernel)
    if out is None:
        return np.ascontiguousarray(gW)
    if accumulate:
        out += gW
    else:
        out[...] = gW
    return out


def _convolve(
    x: np.ndarray,
    groups: int,
    weights: np.ndarray,
    plan: BlockPlan,
    y: np.ndarray,
    b: np.ndarray | None,
) -> None:
    """Multiplies what the windows of x read, and writes it to y.

    Args:
        x: (N, *sizes, C).
        groups: How many groups its channels make.
        weights: (taps, C / groups, channels of y).
        plan: The windows.
        y: (N, *sizes, channels).
        b: (channels,) or nothing.
    """
    _, n_rows, channels = weights.shape
    x = _repeated(plan.padded(x), groups, channels)
    bias = np.zeros(channels, np.float32) if b is None else b
    if not plan.is_complete:
        y[...] = bias
    for block in plan.blocks:
        taps = _rows_of_taps(block, n_rows, channels)
        tap_weights = weights[plan.order[block.order]]
        threads.run_ranges(
            loops.convolve,
            len(x) * block.outputs.size,
            x.reshape(-1),
            math.prod(x.shape[1:]),
            block.inputs * x.shape[-1],
            taps,
            np.ascontiguousarray(tap_weights.reshape(-1, channels)),
            bias,
            y.reshape(-1),
            math.prod(y.shape[1:]),
            block.outputs * channels,
            size=taps.size * channels,
        )


def _repeated(x: np.ndarray, groups: int, channels: int) -> np.ndarray:
    """Returns (N, *sizes, C) with rows of a number of channels, rather than of C."""
    n_rows = x.shape[-1] // groups
    if n_rows == 1 and channels == groups:
        return x
    first = np.repeat(np.arange(groups) * n_rows, channels // groups)
    return np.take(x, (np.arange(n_rows)[:, None] + first).reshape(-1), axis=-1)


def _rows_of_taps(block: Block, n_rows: int, channels: int) -> np.ndarray:
    """Returns where the rows begin that a window reads."""
    rows = np.arange(n_rows) * channels
    return (block.taps[:, None] * n_rows * channels + rows).reshape(-1)
