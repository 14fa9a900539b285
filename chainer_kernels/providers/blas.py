"""Convolutions and products by a BLAS and compiled loops.

The inputs of the windows of a block are copied into rows, as many at a time as the
cache holds. The rows are multiplied. The products are written to their places in the
output while a bias is added:

::

    x (N, H, W, C) -gather-> (rows, taps x C) @ (taps x C, O) -scatter-> y (N, H, W, O)

The gradient of the input takes the same way, from gy to gx. That of the weights is a
sum of products of such rows, transposed, and the rows of gy. Where there are many rows,
cores add up a sum of some of them each; where there are few, each core multiplies a
part of the outputs or channels. Which blocks there are is in
:mod:`chainer_kernels.convolution_blocks`, the rows are in
:mod:`chainer_kernels.window_rows`, gradients of weights in :mod:`.blas_weights`.
"""

from __future__ import annotations

import math

import numpy as np
import threadpoolctl

from chainer_kernels import (
    convolution_blocks,
    grouped_convolution,
    kept_weights,
    threads,
)
from chainer_kernels.convolution_blocks import BlockPlan
from chainer_kernels.gemm import gemm
from chainer_kernels.geometry import Geometry
from chainer_kernels.loops import convolution as loops
from chainer_kernels.providers import blas_weights
from chainer_kernels.window_rows import (
    PRODUCTS_PER_COPY,
    chunks_of,
    pieces,
    scatter,
    windows,
)

NAME = "BLAS and Numba"

turns_weights = blas_weights.turns_weights
add_turned_weights = blas_weights.add_turned_weights
turn_weights_back = blas_weights.turn_weights_back


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
    a: np.ndarray,
    W: np.ndarray,
    is_transposed: bool = False,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """Returns a product with weights that may be kept, turned around or not."""
    y = product(a, W.T if is_transposed else W)
    if bias is not None:
        y += bias
    return y


def as_operand(W: np.ndarray) -> np.ndarray:
    """Returns a matrix for several products, as it is."""
    return W


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
    """Returns ``True``: BLAS is usable everywhere."""
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
    plan: BlockPlan,
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
    chunks = list(chunks_of(plan, len(x), n_groups, channels, outs))

    def compute(start: int, end: int) -> None:
        for block, group, first, count in chunks[start:end]:
            col = windows(x, group * channels, channels, block, first, count)
            rows = np.empty((count, outs), np.float32)
            for i, (source, piece) in enumerate(pieces(block, channels)):
                gemm(col[:, source], matrices[group][piece], rows, accumulate=i > 0)
            here = slice(group * outs, (group + 1) * outs)
            scatter(rows, bias[here], relu, y, here.start, block.outputs, first)

    with threads.one_blas_thread():
        work = y.size * matrices.shape[1] // PRODUCTS_PER_COPY
        threads.run_ranges(compute, len(chunks), size=work // max(1, len(chunks)))
