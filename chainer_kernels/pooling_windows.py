"""Cells of an image that each window of a pooling reads."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

#: A table of more entries is not worth its memory.
LARGEST = 1 << 20


class Windows(NamedTuple):
    """A table of the windows of a pooling, in any number of spatial dimensions.

    ::

        image   a b c    kernel 2 x 2, stride 2, covering all

                d e f    windows     (a b   (c      taps      (0 1   (0
                                      d e)   f)                2 3)   2)

                         starts  0 4 6
                         cells   0 1 3 4 2 5
                         taps    0 1 2 3 0 2

    The parts of windows outside of the image are left out.

    Attributes:
        starts: Where the entries of a window begin, and at last where all end.
        cells: For each entry, a position in the image, which is counted in C order.
        taps: For each entry, a position in the window.
    """

    starts: np.ndarray
    cells: np.ndarray
    taps: np.ndarray


@functools.lru_cache(maxsize=16)
def windows(
    sizes: tuple[int, ...],
    outs: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    pad: tuple[int, ...],
) -> Windows | None:
    """Returns the table of a pooling; ``None`` if it is too large.

    Args:
        sizes: Sizes of the image, one for each spatial axis; the others have as many.
        outs: Numbers of windows.
        kernel: Sizes of a window.
        stride: Distance from one window to the next.
        pad: Cells that the first window has in front of the image.
    """
    if math.prod(outs) * math.prod(kernel) > LARGEST:
        return None
    n = len(sizes)
    cells, is_inside = np.zeros((1,) * 2 * n, np.int64), np.ones((1,) * 2 * n, bool)
    for axis in range(n):
        position = (
            np.arange(outs[axis])[:, None] * stride[axis]
            + np.arange(kernel[axis])
            - pad[axis]
        )
        shape = [1] * 2 * n
        shape[axis], shape[n + axis] = position.shape
        position = position.reshape(shape)
        cells = cells * sizes[axis] + position
        is_inside = is_inside & (position >= 0) & (position < sizes[axis])
    is_inside = is_inside.reshape(math.prod(outs), math.prod(kernel))
    taps = np.broadcast_to(np.arange(math.prod(kernel)), is_inside.shape)
    return Windows(
        np.concatenate(([0], is_inside.sum(axis=1).cumsum())),
        cells.reshape(is_inside.shape)[is_inside].astype(np.uint32),
        taps[is_inside].astype(np.int32),
    )
