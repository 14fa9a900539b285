"""Statistics of channels, and what normalizations make of them.

Arrays are float32, contiguous and (before, C, behind), as
:func:`~chainer_kernels.layouts.around` returns them. Samples may be in groups, each
with statistics of its own: one group for batch normalization, a group for each sample
where that is normalized by itself. Statistics and parameters are (groups, C), or of one
group in any shape.

Statistics are added up in blocks in float32, whose results are added in float64. What a
block is depends on shapes only.
"""

from __future__ import annotations

import functools

import numpy as np

from chainer_kernels import threads
from chainer_kernels.loops import normalization as loops

#: Elements of a block, which stays in the cache of a core, and its rows at least and at
#: most: more would cost accuracy.
BLOCK_SIZE, FEWEST_ROWS, MOST_ROWS = 32768, 32, 128
#: Rows that are shorter are put together.
WIDTH = 256


def moments(x: np.ndarray, n_groups: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Returns means and variances, in float64."""
    before, channels, behind = x.shape
    if behind > 1:
        rows = x.reshape(-1, behind)
        counts = np.full(before // n_groups, behind)
        means, squares = np.empty((2, len(rows)), "f")
        threads.run_slices(loops.row_moments, [rows, means, squares])
    else:
        (rows,), fold = columns([x], n_groups)
        starts, counts = row_blocks(len(rows), n_groups, rows.shape[1])
        counts = np.repeat(counts, fold)
        n_blocks = len(starts) - 1
        means, squares = np.empty((2, n_blocks, rows.shape[1]), "f")
        size = rows.size // n_blocks
        threads.run_ranges(
            loops.column_moments, n_blocks, rows, starts, means, squares, size=size
        )
    blocks_of_group = n_groups, -1, channels
    mean, var = np.zeros((2, n_groups, channels))
    loops.join_moments(
        counts,
        means.reshape(blocks_of_group),
        squares.reshape(blocks_of_group),
        mean,
        var,
    )
    return mean, var


def sums(x: np.ndarray) -> np.ndarray:
    """Returns the sums of channels that come last, in float64."""
    (rows,), _ = columns([x], 1)
    starts, _ = row_blocks(len(rows), 1, rows.shape[1])
    n_blocks = len(starts) - 1
    found = np.empty((n_blocks, rows.shape[1]), "f")
    size = rows.size // n_blocks
    threads.run_ranges(loops.column_sums, n_blocks, rows, starts, found, size=size)
    return found.reshape(-1, x.shape[1]).sum(0, dtype="d")


def products(
    x: np.ndarray, gy: np.ndarray, means: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sums of ``gy`` and of ``gy * (x - mean)``, in float64."""
    before, channels, behind = x.shape
    (means,) = in_groups(channels, means)
    n_groups = len(means)
    if behind > 1:
        rows, gradients = x.reshape(-1, behind), gy.reshape(-1, behind)
        sums = np.empty((2, len(rows)), "f")
        arrays = [rows, gradients, by_row(means, before), *sums]
        threads.run_slices(loops.row_products, arrays)
    else:
        (rows, gradients), fold = columns([x, gy], n_groups)
        starts, _ = row_blocks(len(rows), n_groups, rows.shape[1])
        n_blocks = len(starts) - 1
        sums = np.empty((2, n_blocks, rows.shape[1]), "f")
        threads.run_ranges(
            loops.column_products,
            n_blocks,
            rows,
            gradients,
            repeated(means, fold),
            starts,
            *sums,
            size=2 * rows.size // n_blocks,
        )
    first, second = sums.reshape(2, n_groups, -1, channels).sum(2, dtype="d")
    return first, second


def scale(
    x: np.ndarray,
    means: np.ndarray,
    scales: np.ndarray,
    shifts: np.ndarray,
    y: np.ndarray,
) -> None:
    """Computes ``y = (x - mean) * scale + shift``."""
    before, channels, behind = x.shape
    parameters = in_groups(channels, means, scales, shifts)
    if behind > 1:
        arrays = [x.reshape(-1, behind), y.reshape(-1, behind)]
        arrays += [by_row(a, before) for a in parameters]
        threads.run_slices(loops.scale_rows, arrays)
        return
    (rows, out), fold = columns([x, y], len(parameters[0]))
    parameters = [repeated(a, fold) for a in parameters]
    threads.run_ranges(
        loops.scale_columns, len(rows), rows, *parameters, out, size=rows.shape[1]
    )


def combine(
    x: np.ndarray,
    gy: np.ndarray,
    means: np.ndarray,
    scales: np.ndarray,
    slopes: np.ndarray,
    shifts: np.ndarray,
    gx: np.ndarray,
) -> None:
    """Computes ``gx = gy * scale + ((x - mean) * slope + shift)``."""
    before, channels, behind = x.shape
    parameters = in_groups(channels, means, scales, slopes, shifts)
    if behind > 1:
        arrays = [a.reshape(-1, behind) for a in (x, gy, gx)]
        arrays += [by_row(a, before) for a in parameters]
        threads.run_slices(loops.combine_rows, arrays)
        return
    (rows, gradients, out), fold = columns([x, gy, gx], len(parameters[0]))
    parameters = [repeated(a, fold) for a in parameters]
    threads.run_ranges(
        loops.combine_columns,
        len(rows),
        rows,
        gradients,
        *parameters,
        out,
        size=rows.shape[1],
    )


def in_groups(channels: int, *arrays: np.ndarray) -> list[np.ndarray]:
    """Returns arrays as contiguous (groups, C) in float32."""
    return [np.ascontiguousarray(a, "f").reshape(-1, channels) for a in arrays]


def by_row(parameters: np.ndarray, n_samples: int) -> np.ndarray:
    """Returns (groups, C) for rows of (samples, C)."""
    return np.repeat(parameters, n_samples // len(parameters), axis=0).reshape(-1)


def repeated(parameters: np.ndarray, fold: int) -> np.ndarray:
    """Returns (groups, C) for rows that are several of theirs."""
    return parameters if fold == 1 else np.tile(parameters, fold)


def columns(arrays: list[np.ndarray], n_groups: int) -> tuple[list[np.ndarray], int]:
    """Returns (rows, C, 1) as matrices, and how many rows of C are one row of theirs.

    ::

        a b                     a b a b
        a b      fold = 2       a b a b
        a b     --------->
        a b
    """
    n_rows, channels, _ = arrays[0].shape
    fold = 1
    while channels * fold < WIDTH and n_rows // n_groups % (2 * fold) == 0:
        fold *= 2
    return [a.reshape(-1, channels * fold) for a in arrays], fold


@functools.lru_cache(maxsize=256)
def row_blocks(n_rows: int, n_groups: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns where blocks of rows start and end, and the lengths of a group's."""
    rows = min(max(BLOCK_SIZE // width, FEWEST_ROWS), MOST_ROWS)
    in_group = np.arange(0, n_rows // n_groups, rows)
    starts = np.add.outer(np.arange(0, n_rows, n_rows // n_groups), in_group)
    return np.append(starts, n_rows), np.diff(in_group, append=n_rows // n_groups)
