"""Positions of a convolution, and the tiles of weights that each is multiplied by.

A tile has 8 outputs and 8 inputs, at a tap of the kernel. Positions that use the same
taps, a block of a :class:`.BlockPlan`, are multiplied by the same tiles::

    taps of a block     0 1 3 4
    all tiles           a(tap 0)  b(tap 2)  c(tap 4)
    those of its run    a         .         c
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chainer_kernels.convolution_blocks import Block, BlockPlan
from chainer_kernels.loops.tile_sums import SIDE


class Tiles(NamedTuple):
    """Tiles by their numbers, in the order of what is written.

    Attributes:
        written: Number of the 8 channels that each tile writes to, ascending.
        read: Number of the 8 channels that each tile reads.
        taps: Tap of each tile.
    """

    written: np.ndarray
    read: np.ndarray
    taps: np.ndarray


class Images(NamedTuple):
    """The sizes of two arrays of images, of one number of samples.

    Attributes:
        n_samples: Number of samples.
        n_read: Positions of an image that is read, with its padding.
        n_written: Positions of an image that is written.
        channels: Channels of the image that is written.
        n_taps: Number of taps of the kernel.
    """

    n_samples: int
    n_read: int
    n_written: int
    channels: int
    n_taps: int


class Run(NamedTuple):
    """Positions that use the same taps, and the tiles that they are multiplied by.

    Attributes:
        rows: Position of each window in the array that is read.
        targets: Position of what is written for it.
        starts: For each 8 channels that are written, the first of their tiles; the end
            of the last ones behind them.
        columns: For each tile, the distance of its channels from a position that is
            written, if these are by eights: (channels / 8, positions, 8).
        offsets: For each tile, the distance of what it reads from a window's position
            in such an array.
        tiles: The number of that tile among all.
    """

    rows: np.ndarray
    targets: np.ndarray
    starts: np.ndarray
    columns: np.ndarray
    offsets: np.ndarray
    tiles: np.ndarray


def runs_of(tiles: Tiles, plan: BlockPlan, images: Images) -> list[Run]:
    """Returns the runs of a convolution, one for each block of its plan.

    Args:
        tiles: The tiles of all taps.
        plan: The positions.
        images: The arrays that are read and written.
    """
    return [_run(tiles, plan, block, images) for block in plan.blocks]


def _run(tiles: Tiles, plan: BlockPlan, block: Block, images: Images) -> Run:
    # The place of each tap of the kernel among those that the block uses.
    places = np.full(images.n_taps, -1)
    places[plan.order[block.order]] = np.arange(len(block.order))
    used = np.flatnonzero(places[tiles.taps] >= 0)
    distances = block.taps[places[tiles.taps[used]]]
    written = tiles.written[used]
    samples = np.arange(images.n_samples)[:, None]
    rows = samples * images.n_read + block.inputs
    targets = samples * images.n_written + block.outputs
    groups = np.arange(images.channels // SIDE + 1)
    return Run(
        rows.reshape(-1),
        targets.reshape(-1),
        np.searchsorted(written, groups),
        written * (images.n_samples * images.n_written * SIDE),
        (tiles.read[used] * (images.n_samples * images.n_read) + distances) * SIDE,
        used,
    )
