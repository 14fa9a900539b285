"""The windows of a block as rows of a matrix, and rows written to where they belong.

::

    x (N, H, W, C) -windows-> (rows, taps x C)    (rows, O) -scatter-> y (N, H, W, O)

Rows of a single tap are not copied. :mod:`chainer_kernels.providers.blas` multiplies
them, as many at a time as :func:`chunks_of` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from chainer_kernels import threads
from chainer_kernels.convolution_blocks import Block, BlockPlan
from chainer_kernels.loops import convolution as loops

#: How many products there are for the cores, unless each would have few rows.
PRODUCTS, _FEW_ROWS = 8, 256

#: How many multiplications of a product take as long as copying an element.
PRODUCTS_PER_COPY = 32

#: How many elements are gathered for a product, and how many rows at least.
_CHUNK, _ROWS = 1 << 18, 512


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


def chunks_of(
    plan: BlockPlan, batch: int, n_groups: int, channels: int, outs: int
) -> Iterator[tuple[Block, int, int, int]]:
    """Generates blocks, groups, and the first and the number of the rows of a part.

    Parts follow from shapes alone: sums over parts are the same on any number of cores.
    """
    for block in plan.blocks:
        n_rows = batch * block.outputs.size
        step = max(_ROWS, _CHUNK // (block.taps.size * channels + outs))
        n_parts = max(-(-n_rows // step), min(PRODUCTS, -(-n_rows // _FEW_ROWS)))
        # An empty batch has no rows, and no parts.
        step = max(1, -(-n_rows // max(1, n_parts)))
        for group in range(n_groups):
            for first in range(0, n_rows, step):
                yield block, group, first, min(step, n_rows - first)
