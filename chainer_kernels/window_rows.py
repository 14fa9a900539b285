"""The windows of a block as rows of a matrix, and rows written to where they belong.

::

    x (N, H, W, C) -windows-> (rows, taps x C)    (rows, O) -scatter-> y (N, H, W, O)

Rows of a single tap are not copied. :mod:`chainer_kernels.providers.blas` multiplies
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from chainer_kernels import threads
from chainer_kernels.convolution_blocks import Block
from chainer_kernels.loops import convolution as loops


def pieces(block: Block, channels: int) -> Iterator[tuple[slice, slice]]:
    """Generates columns of gathered rows, and which of all taps they are.

    Args:
        block: Windows with the same taps.
        channels: Number of channels that are gathered.
    """
    start = 0
    for first, end in block.pieces:
        width = (end - first) * channels
        yield slice(start, start + width), slice(first * channels, end * channels)
        start += width


def windows(
    x: np.ndarray, channel: int, channels: int, block: Block, first: int, count: int
) -> np.ndarray:
    """Returns what windows of a block read of some channels, a row for each.

    Args:
        x: Samples in the order (N, ..., C).
        channel: First of the channels.
        channels: Number of channels.
        block: Windows with the same taps.
        first: First of the windows.
        count: Number of windows.
    """
    taps, run = block.taps, channels
    if channels == x.shape[-1]:
        taps, run = block.runs, channels * block.n_adjacent
    return gather(x, channel, run, block.inputs, taps, first, count)


def gather(
    x: np.ndarray,
    channel: int,
    run: int,
    positions: np.ndarray,
    taps: np.ndarray,
    first: int,
    count: int,
) -> np.ndarray:
    """Returns runs of elements at positions and taps of x, as (count, taps x run).

    Args:
        x: Samples in the order (N, ..., C).
        channel: First element of a run, within the channels of a place.
        run: Number of elements.
        positions: Positions of the block in a sample.
        taps: Distances from a position to the places that are read.
        first: First of the rows, counted in all samples.
        count: Number of rows.
    """
    n_positions = math.prod(x.shape[1:-1])
    if taps.size == 1 and positions.size == n_positions:
        every = x.reshape(-1, x.shape[-1])
        return every[first : first + count, channel : channel + run]
    col = np.empty((count, taps.size * run), np.float32)
    image, channels = n_positions * x.shape[-1], x.shape[-1]
    threads.run_ranges(
        loops.gather,
        count,
        x.reshape(-1),
        image,
        channels,
        channel,
        positions,
        taps,
        run,
        first,
        col.reshape(-1),
        size=col.shape[1],
    )
    return col


def scatter(
    rows: np.ndarray,
    bias: np.ndarray,
    relu: bool,
    y: np.ndarray,
    channel: int,
    positions: np.ndarray,
    first: int,
) -> None:
    """Writes rows to positions of y, beginning at a channel.

    Args:
        rows: A row for each position.
        bias: Addend of each column.
        relu: Whether negative sums become zero.
        y: Samples in the order (N, ..., C).
        channel: First of the channels.
        positions: Positions of the block in a sample.
        first: First of the rows, counted in all samples.
    """
    channels = y.shape[-1]
    threads.run_ranges(
        loops.scatter,
        len(rows),
        rows,
        bias,
        relu,
        math.prod(y.shape[1:]),
        channels,
        channel,
        positions,
        first,
        y.reshape(-1),
        size=rows.shape[1],
    )
