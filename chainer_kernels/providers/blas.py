"""Convolutions and products by a BLAS and compiled loops.

What the windows of a block read is copied into rows, as many at a time as the cache
holds, multiplied, and written to where it belongs while a bias is added:

::

    x (N, H, W, C) -gather-> (rows, taps x C) @ (taps x C, O) -scatter-> y (N, H, W, O)

The gradient of the input takes the same way, from gy to gx. That of the weights is a
sum of products of such rows, transposed, and the rows of gy. Where there are many rows,
cores add up a sum of some of them each; where there are few, each core multiplies a
part of the outputs or channels. Which blocks there are is in
:mod:`chainer_kernels.convolution_blocks`, and the rows are in
:mod:`chainer_kernels.window_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import threadpoolctl

from chainer_kernels import (
    convolution_blocks,
    grouped_convolution,
    kept_weights,
    threads,
)
from chainer_kernels.convolution_blocks import Block, Plan
from chainer_kernels.gemm import gemm
from chainer_kernels.geometry import Geometry
from chainer_kernels.loops import convolution as loops
from chainer_kernels.window_rows import gather, pieces, scatter, windows

NAME = "BLAS and Numba"

#: How many elements are gathered for a product, and how many rows at least.
_CHUNK, _ROWS = 1 << 18, 512

#: How many products there are for the cores, unless each would have few rows.
_PRODUCTS, _FEW_ROWS = 8, 256

#: How long the parts of a product's side are at least, where they are more than two.
_PART = 128

#: How many sums of products there are at most, and of how many rows each at least:
#: clearing and adding a sum is then a small part of making it.
_SUMS, _ROWS_PER_SUM = 8, 4096

#: How many multiplications of a product take as long as copying an element.
_PRODUCTS_PER_COPY = 32

#: What a window reads where there is but one tap.
_ONE_TAP = np.zeros(1, np.int64)


def convolution(
    x: np.ndarray,
    W: np.ndarray,
    b: np.ndarray | None,
    geometry: Geometry,
    relu: bool = False,
) -> np.ndarray:
    """Returns the output of a convolution."""
    if grouped_convolution.are_narrow(geometry, W.shape[1], len(W)):
        return grouped_convolution.convolution(x, W, b, geometry, relu)
    sizes = x.shape[1:-1]
    weights = _by_groups(W, geometry)
    n_groups, outs, channels, taps = weights.shape
    plan = convolution_blocks.of_outputs(geometry, len(x), outs * channels, sizes)

    def turned() -> np.ndarray:
        made = np.empty((n_groups, outs, taps * channels), np.float32)
        for group, rows in zip(weights, made):
            _turn(group, plan.order, taps * channels, channels, rows)
        return made

    matrices = kept_weights.kept(W, ("rows", geometry), W.nbytes, turned)
    y = np.empty((len(x), *geometry.output_sizes(sizes), len(W)), np.float32)
    _convolve(x, plan, matrices.transpose(0, 2, 1), y, b, relu)
    return y


def convolution_data(
    gy: np.ndarray, W: np.ndarray, geometry: Geometry, size: tuple[int, ...]
) -> np.ndarray:
    """Returns the gradient of a convolution's input."""
    if grouped_convolution.are_narrow(geometry, W.shape[1], len(W)):
        return grouped_convolution.convolution_data(gy, W, geometry, size)
    weights = _by_groups(W, geometry)
    n_groups, outs, channels, taps = weights.shape
    plan = convolution_blocks.of_inputs(
        geometry, len(gy), outs * channels, size, gy.shape[1:-1]
    )

    def turned() -> np.ndarray:
        made = np.empty((n_groups, taps * outs, channels), np.float32)
        for group, rows in zip(weights, made):
            _turn(group, plan.order, channels, outs * channels, rows)
        return made

    matrices = kept_weights.kept(W, ("columns", geometry), W.nbytes, turned)
    gx = np.empty((len(gy), *size, n_groups * channels), np.float32)
    _convolve(gy, plan, matrices, gx, None, False)
    return gx


def convolution_weights(
    x: np.ndarray,
    gy: np.ndarray,
    geometry: Geometry,
    out: np.ndarray | None = None,
    accumulate: bool = False,
) -> np.ndarray:
    """Returns the gradient of a convolution's weights, written or added to ``out``.

    Raises:
        ValueError: ``out`` is not C contiguous.
    """
    n_groups, taps = geometry.groups, math.prod(geometry.kernel)
    channels, outs = x.shape[-1] // n_groups, gy.shape[-1] // n_groups
    if grouped_convolution.are_narrow(geometry, channels, gy.shape[-1]):
        return grouped_convolution.convolution_weights(x, gy, geometry, out, accumulate)
    shape = (n_groups * outs, channels, *geometry.kernel)
    gW = None if taps == 1 and out is None else result(shape, out)
    turned = np.empty((n_groups, outs, taps * channels), np.float32)
    add_turned_weights(x, gy, geometry, turned, is_first=True)
    if gW is None:
        return turned.reshape(shape)
    threads.run_slices(
        loops.turn_back,
        [turned.reshape(-1, taps, channels), gW.reshape(-1, channels, taps)],
        accumulate,
    )
    return gW


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
        out: As many elements, C contiguous.
        is_first: Whether what is in ``out`` is overwritten.
    """
    n_groups = geometry.groups
    channels, outs = x.shape[-1] // n_groups, gy.shape[-1] // n_groups
    plan = convolution_blocks.of_outputs(
        geometry, len(x), outs * channels, x.shape[1:-1]
    )
    x = plan.padded(x)
    chunks = list(_chunks(plan, len(x), n_groups, channels, outs))
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


def result(shape: tuple[int, ...], out: np.ndarray | None) -> np.ndarray:
    """Returns an array for a gradient of weights: ``out``, if there is one.

    Raises:
        ValueError: ``out`` is not C contiguous.
    """
    if out is None:
        return np.empty(shape, np.float32)
    if not out.flags.c_contiguous:
        raise ValueError(f"out must be C contiguous, not of strides {out.strides}")
    return out


def product(
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray | None = None,
    accumulate: bool = False,
) -> np.ndarray:
    """Returns a product of matrices, written or added to ``out`` if there is one."""
    with threads.all_blas_threads():
        if out is None or not accumulate:
            return np.matmul(a, b, out=out)
        gemm(a, b, out, accumulate=True)
        return out


def product_with_weights(
    a: np.ndarray, W: np.ndarray, is_transposed: bool = False
) -> np.ndarray:
    """Returns a product with weights that may be kept, turned around or not."""
    return product(a, W.T if is_transposed else W)


def version() -> str:
    """Returns the libraries that multiply, and for which processors they do."""
    pools = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
    # An environment may hold it to those of older processors.
    names = {
        " ".join(
            str(p[key])
            for key in ("internal_api", "version", "architecture")
            if p.get(key)
        )
        for p in pools
    }
    return ", ".join(sorted(names))


def is_usable(is_asked_for: bool) -> bool:
    """Says that it is, everywhere."""
    return True


def _by_groups(W: np.ndarray, geometry: Geometry) -> np.ndarray:
    """Returns weights as (groups, O / groups, C / groups, taps)."""
    return W.reshape(geometry.groups, -1, W.shape[1], math.prod(geometry.kernel))


def _turn(
    weights: np.ndarray,
    order: np.ndarray,
    out_stride: int,
    tap_stride: int,
    turned: np.ndarray,
) -> None:
    """Copies weights (O, C, taps) to rows of channels."""
    loops.turn(weights, order, out_stride, tap_stride, turned.reshape(-1))


def _convolve(
    x: np.ndarray,
    plan: Plan,
    matrices: np.ndarray,
    y: np.ndarray,
    b: np.ndarray | None,
    relu: bool,
) -> None:
    """Multiplies what the windows of x read, and writes it to y.

    Args:
        x: (N, *sizes, C).
        plan: The windows.
        matrices: (groups, taps x C / groups, O / groups).
        y: (N, *sizes, O).
        b: (O,) or nothing.
        relu: Whether what is negative becomes zero.
    """
    x = plan.padded(x)
    n_groups, _, outs = matrices.shape
    channels = x.shape[-1] // n_groups
    bias = np.zeros(n_groups * outs, np.float32) if b is None else b
    if not plan.is_complete:
        y[...] = np.maximum(bias, 0) if relu else bias
    chunks = list(_chunks(plan, len(x), n_groups, channels, outs))

    def compute(start: int, end: int) -> None:
        for block, group, first, count in chunks[start:end]:
            col = windows(x, group * channels, channels, block, first, count)
            rows = np.empty((count, outs), np.float32)
            for i, (source, piece) in enumerate(pieces(block, channels)):
                gemm(col[:, source], matrices[group][piece], rows, accumulate=i > 0)
            here = slice(group * outs, (group + 1) * outs)
            scatter(rows, bias[here], relu, y, here.start, block.outputs, first)

    with threads.one_blas_thread():
        work = y.size * matrices.shape[1] // _PRODUCTS_PER_COPY
        threads.run_ranges(compute, len(chunks), size=work // max(1, len(chunks)))


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
        chunks: As of :func:`_chunks`.
        out: (groups, O / groups, taps x C / groups).
    """
    n_groups, outs, _ = out.shape
    channels = x.shape[-1] // n_groups
    n_rows = sum(count for *_, count in chunks) // n_groups
    # It follows from shapes alone, as the chunks do.
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
            work = n_rows * out.size // _PRODUCTS_PER_COPY
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

    work = len(out) * col.size // _PRODUCTS_PER_COPY
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
        n_parts = min(size, max(2, min(_PRODUCTS, size // _PART)))
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


def _chunks(
    plan: Plan, batch: int, n_groups: int, channels: int, outs: int
) -> Iterator[tuple[Block, int, int, int]]:
    """Generates blocks, groups, and the first and the number of the rows of a part.

    They follow from shapes alone: sums over parts are the same on any number of cores.
    """
    for block in plan.blocks:
        n_rows = batch * block.outputs.size
        step = max(_ROWS, _CHUNK // (block.taps.size * channels + outs))
        n_parts = max(-(-n_rows // step), min(_PRODUCTS, -(-n_rows // _FEW_ROWS)))
        # An empty batch has no rows, and no parts.
        step = max(1, -(-n_rows // max(1, n_parts)))
        for group in range(n_groups):
            for first in range(0, n_rows, step):
                yield block, group, first, min(step, n_rows - first)
