"""Gradients of a convolution's weights, by BLAS: sums of products of rows.

The rows of gy, transposed, times what windows of x read are (O, taps x C). Several such
gradients may be added up in that order, and turned to (O, C, taps) but once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from chainer_kernels import convolution_blocks, grouped_convolution, threads
from chainer_kernels.convolution_blocks import Block
from chainer_kernels.gemm import gemm
from chainer_kernels.geometry import Geometry
from chainer_kernels.loops import convolution as loops
from chainer_kernels.window_rows import (
    PRODUCTS,
    PRODUCTS_PER_COPY,
    chunks_of,
    gather,
    pieces,
    windows,
)

#: How long the parts of a product's side are at least, where they are more than two.
_PART = 128

#: How many sums of products there are at most, and of how many rows each at least:
#: clearing and adding a sum is then a small part of making it.
_SUMS, _ROWS_PER_SUM = 8, 4096

#: Offsets of the taps of a window that has one tap.
_ONE_TAP = np.zeros(1, np.int64)


def turns_weights(x: tuple[int, ...], gy: tuple[int, ...], geometry: Geometry) -> bool:
    """Returns whether gradients of weights are made in another order, and turned.

    Then :func:`add_turned_weights` may add several, which are turned back but once.

    Args:
        x: Shape of the input, (N, *sizes, C).
        gy: Shape of the output gradient, (N, *sizes, O).
        geometry: The convolution's.
    """
    channels = x[-1] // geometry.groups
    is_narrow = grouped_convolution.are_narrow(geometry, channels, gy[-1])
    return math.prod(geometry.kernel) > 1 and not is_narrow


def add_turned_weights(
    x: np.ndarray, gy: np.ndarray, geometry: Geometry, out: np.ndarray, is_first: bool
) -> None:
    """Adds the gradient of a convolution's weights, as (O, taps, C / groups).

    Args:
        x: (N, *sizes, C).
        gy: (N, *sizes, O).
        geometry: The convolution's.
        out: Array of as many elements as the weights have, C contiguous.
        is_first: Whether what is in ``out`` is overwritten.
    """
    n_groups = geometry.groups
    channels, outs = x.shape[-1] // n_groups, gy.shape[-1] // n_groups
    plan = convolution_blocks.of_outputs(
        geometry, len(x), outs * channels, x.shape[1:-1]
    )
    x = plan.padded(x)
    chunks = list(chunks_of(plan, len(x), n_groups, channels, outs))
    if is_first:
        out[...] = 0
    _add_sum_of_products(x, gy, chunks, out.reshape(n_groups, outs, -1))


def turn_weights_back(turned: np.ndarray) -> None:
    """Turns (O, taps, C / groups) to (O, C / groups, *kernel), where it is.

    Args:
        turned: C contiguous, and of the shape of the result.
    """
    channels, *kernel = turned.shape[1:]
    rows = turned.reshape(len(turned), math.prod(kernel), channels)
    threads.run_slices(loops.turn_in_place, [rows])


def _add_sum_of_products(
    x: np.ndarray,
    gy: np.ndarray,
    chunks: Sequence[tuple[Block, int, int, int]],
    out: np.ndarray,
) -> None:
    """Adds the sum of rows of gy, transposed, times what windows of x read.

    Args:
        x: (N, *sizes, C).
        gy: (N, *sizes, O).
        chunks: Parts of the work, as :func:`chunks_of` yields them.
        out: (groups, O / groups, taps x C / groups).
    """
    n_groups, outs, _ = out.shape
    channels = x.shape[-1] // n_groups
    n_rows = sum(count for *_, count in chunks) // n_groups
    # The number of sums follows from shapes alone, as the chunks do.
    n_sums = max(1, min(_SUMS, n_rows // _ROWS_PER_SUM, len(chunks)))
    sums = [out, *np.zeros((n_sums - 1, *out.shape), np.float32)]
    ends = [len(chunks) * i // n_sums for i in range(n_sums + 1)]

    def compute(start: int, end: int) -> None:
        for i in range(start, end):
            for block, group, first, count in chunks[ends[i] : ends[i + 1]]:
                col = windows(x, group * channels, channels, block, first, count)
                rows = gather(
                    gy, group * outs, outs, block.outputs, _ONE_TAP, first, count
                )
                parts = pieces(block, channels)
                add = _add_parts if n_sums == 1 else _add_products
                add(rows, col, parts, sums[i][group])

    with threads.one_blas_thread():
        if n_sums == 1:
            compute(0, 1)
        else:
            work = n_rows * out.size // PRODUCTS_PER_COPY
            threads.run_ranges(compute, n_sums, size=work // n_sums)
    for other in sums[1:]:
        out += other


def _add_products(
    rows: np.ndarray,
    col: np.ndarray,
    pieces: Iterator[tuple[slice, slice]],
    out: np.ndarray,
) -> None:
    """Adds products of rows of gy, transposed, and gathered columns."""
    for source, piece in pieces:
        gemm(rows.T, col[:, source], out[:, piece], accumulate=True)


def _add_parts(
    rows: np.ndarray,
    col: np.ndarray,
    pieces: Iterator[tuple[slice, slice]],
    out: np.ndarray,
) -> None:
    """Adds the same, the products being computed in parts on all cores."""
    parts = list(_parts(len(out), pieces))

    def compute(start: int, end: int) -> None:
        for outs, source, piece in parts[start:end]:
            gemm(rows[:, outs].T, col[:, source], out[outs, piece], accumulate=True)

    work = len(out) * col.size // PRODUCTS_PER_COPY
    threads.run_ranges(compute, len(parts), size=work // len(parts))


def _parts(
    n_outs: int, pieces: Iterator[tuple[slice, slice]]
) -> Iterator[tuple[slice, slice, slice]]:
    """Generates parts of products: outputs, columns of rows, and columns of weights.

    The longer side is cut, for all parts read the whole of the other. Where follows
    from shapes alone: BLAS may add up an element in another order near the end of a
    product than in its midst.
    """
    for source, piece in pieces:
        width = source.stop - source.start
        size = max(n_outs, width)
        n_parts = min(size, max(2, min(PRODUCTS, size // _PART)))
        ends = [size * part // n_parts for part in range(n_parts + 1)]
        for start, end in zip(ends, ends[1:]):
            if n_outs > width:
                yield slice(start, end), source, piece
            else:
                yield (
                    slice(None),
                    _within(source, start, end),
                    _within(piece, start, end),
                )


def _within(whole: slice, start: int, end: int) -> slice:
    """Returns a part of a slice, counted from where that starts."""
    return slice(whole.start + start, whole.start + end)
