"""Convolutions and products by oneDNN.

Activations stay as they are. Weights are turned into the layout that oneDNN chooses,
once a call, or once a scope (:mod:`chainer_kernels.prepared_weights`): it has nothing
fast for weights as Chainer has them.

::

    W (O, C, H, W) -reorder-> chosen layout
    x (N, H, W, C) ------------------------- convolution -> y (N, H, W, O)

What is made for a shape is kept, for as many shapes as a training run is likely to
have. Which implementation computes depends on shapes, the processor and the number of
threads alone, so the same input gives the same bits.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import warnings
from typing import NamedTuple

import numpy as np

from chainer_kernels import kept_weights, threads
from chainer_kernels.gemm import operand
from chainer_kernels.geometry import Geometry
from chainer_kernels.loops import activations
from chainer_kernels.providers import blas, onednn_products
from chainer_kernels.providers import onednn_library as dnnl
from chainer_kernels.providers.onednn_library import AlgorithmChoice, Layout, Primitive
from chainer_kernels.providers.onednn_products import SMALLEST_PRODUCT

NAME = "oneDNN"

#: How many convolutions are kept.
_KEPT = 1024

#: Elements of weights from which on oneDNN takes longer than products for gradients.
_LARGE_WEIGHTS = 1 << 20

_FORWARD = "convolution_forward"
_DATA = "convolution_backward_data"
_WEIGHTS = "convolution_backward_weights"

#: Reason of the first refusal, which a warning has reported.
_complaints: list[str] = []

Shape = tuple[int, ...]


class _Convolution(NamedTuple):
    """A convolution, or one of its gradients, for arrays of certain shapes.

    Attributes:
        compute: Takes weights in the layout of its choice.
        reorder: Turns weights into that layout, or gradients of them back.
        layout: The layout.
    """

    compute: Primitive
    reorder: Primitive
    layout: dnnl.ChosenLayout


def convolution(
    x: np.ndarray,
    W: np.ndarray,
    b: np.ndarray | None,
    geometry: Geometry,
    relu: bool = False,
) -> np.ndarray:
    """Returns the output of a convolution."""
    y_shape = (len(x), *geometry.output_sizes(x.shape[1:-1]), len(W))
    found = _find(_FORWARD, x.shape, W.shape, y_shape, geometry, b is not None)
    if found is None:
        y = onednn_products.convolution(x, W, b, geometry)
        if y is None:
            return blas.convolution(x, W, b, geometry, relu)
    else:
        y = np.empty(y_shape, np.float32)
        bias = () if b is None else (b,)
        found.compute(x, y, _turned(W, found), *bias)
    if relu:
        # oneDNN's own makes zeros of what is no number.
        threads.run_slices(activations.relu, [y.reshape(-1), y.reshape(-1)])
    return y


def convolution_data(
    gy: np.ndarray, W: np.ndarray, geometry: Geometry, size: Shape
) -> np.ndarray:
    """Returns the gradient of a convolution's input."""
    gx_shape = (len(gy), *size, W.shape[1] * geometry.groups)
    found = _find(_DATA, gx_shape, W.shape, gy.shape, geometry)
    if found is None:
        gx = onednn_products.convolution_data(gy, W, geometry, size)
        return blas.convolution_data(gy, W, geometry, size) if gx is None else gx
    gx = np.empty(gx_shape, np.float32)
    found.compute(gy, gx, _turned(W, found))
    return gx


def convolution_weights(
    x: np.ndarray,
    gy: np.ndarray,
    geometry: Geometry,
    out: np.ndarray | None = None,
    accumulate: bool = False,
) -> np.ndarray:
    """Returns the gradient of a convolution's weights, written or added to ``out``."""
    W_shape = (gy.shape[-1], x.shape[-1] // geometry.groups, *geometry.kernel)
    found = _find(_WEIGHTS, x.shape, W_shape, gy.shape, geometry, accumulate)
    if found is None:
        return blas.convolution_weights(x, gy, geometry, out, accumulate)
    gW = blas.result(W_shape, out)
    turned = dnnl.empty(found.layout.n_bytes)
    found.compute(x, gy, turned)
    found.reorder(turned, gW)
    return gW


def turns_weights(x: Shape, gy: Shape, geometry: Geometry) -> bool:
    """Returns whether gradients of weights are made by BLAS, and turned back."""
    W_shape = (gy[-1], x[-1] // geometry.groups, *geometry.kernel)
    found = _find(_WEIGHTS, x, W_shape, gy, geometry, True)
    return found is None and blas.turns_weights(x, gy, geometry)


add_turned_weights, turn_weights_back = blas.add_turned_weights, blas.turn_weights_back


def product(
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray | None = None,
    accumulate: bool = False,
) -> np.ndarray:
    """Returns a product of matrices, written or added to ``out`` if there is one."""
    m, k = a.shape
    n = b.shape[1]
    # For a vector, oneDNN 3.2 adds 0 times what is in `out`, which may be no number.
    if m * n * k < SMALLEST_PRODUCT or min(m, n) == 1:
        return blas.product(a, b, out, accumulate)
    if out is None:
        out = np.empty((m, n), np.float32)
    elif out.strides[1] != out.itemsize:
        return blas.product(a, b, out, accumulate)
    left, is_left_transposed, left_stride = operand(a)
    right, is_right_transposed, right_stride = operand(b)
    library = dnnl.library()
    library.check(
        library.sgemm(
            *(is_left_transposed, is_right_transposed, m, n, k, 1),
            *(left.__array_interface__["data"][0], left_stride),
            *(right.__array_interface__["data"][0], right_stride),
            *(int(accumulate), out.__array_interface__["data"][0]),
            out.strides[0] // out.itemsize,
        )
    )
    return out


def product_with_weights(
    a: np.ndarray, W: np.ndarray, is_transposed: bool = False
) -> np.ndarray:
    """Returns a product with weights that may be kept, turned around or not."""
    y = onednn_products.product(a, W, is_transposed)
    return product(a, W.T if is_transposed else W) if y is None else y


def version() -> str:
    """Returns the library's version."""
    return dnnl.library().version_number


def is_usable(is_asked_for: bool) -> bool:
    """Returns whether the library works here; warns if it is broken.

    Args:
        is_asked_for: Whether to warn as well if it is not installed, or the processor
            too old.
    """
    try:
        dnnl.library()
    except dnnl.OneDNNError as error:
        expected = dnnl.NotInstalledError, dnnl.OldProcessorError
        if is_asked_for or not isinstance(error, expected):
            warnings.warn(
                f"chainer_kernels computes by BLAS and Numba: oneDNN {error}."
                " CHAINER_KERNELS_PROVIDER=blas silences this.",
                RuntimeWarning,
                stacklevel=2,
            )
        return False
    return True


def _turned(W: np.ndarray, found: _Convolution) -> np.ndarray:
    """Returns weights in the layout that was chosen, perhaps kept."""

    def turned() -> np.ndarray:
        made = dnnl.empty(found.layout.n_bytes)
        found.reorder(W, made)
        return made

    return kept_weights.kept(W, found.layout, found.layout.n_bytes, turned)


def _find(
    operation: str,
    x: Shape,
    W: Shape,
    y: Shape,
    geometry: Geometry,
    is_added: bool = False,
) -> _Convolution | None:
    """Returns a convolution, made or kept; ``None`` where BLAS and Numba are better.

    Args:
        operation: One of those above.
        x: Shape of the input.
        W: Shape of the weights.
        y: Shape of the output.
        geometry: The convolution's.
        is_added: Whether there is a bias to add, or gradients to be added to.
    """
    # A primitive serves one thread, and relies on the threads of its process.
    thread = os.getpid(), threading.get_ident()
    return _make(thread, operation, x, W, y, geometry, is_added)


@functools.lru_cache(_KEPT)
def _make(
    thread: tuple[int, int],
    operation: str,
    x: Shape,
    W: Shape,
    y: Shape,
    geometry: Geometry,
    is_added: bool,
) -> _Convolution | None:
    try:
        return _chosen(operation, x, W, y, geometry, is_added)
    except dnnl.OneDNNError as error:
        _complain(f"{operation} of {x=}, {W=}, {y=}, {geometry}: {error}")
        return None


def _chosen(
    operation: str, x: Shape, W: Shape, y: Shape, geometry: Geometry, is_added: bool
) -> _Convolution | None:
    if not math.prod((*x, *W, *y)) or _suits_products(operation, W, geometry, x, y):
        return None
    if geometry.groups > 1:
        W = (geometry.groups, W[0] // geometry.groups, *W[1:])
    engine = dnnl.library().engine
    any_W, plain_W = Layout(W), Layout(W, strides(W))
    x_layout, y_layout = channels_last(x), channels_last(y)
    bias = Layout(y[-1:], (1,)) if is_added and operation == _FORWARD else None
    around = windows(geometry, x[1:-1], y[1:-1])
    choice = AlgorithmChoice(
        _FORWARD,
        *(engine, dnnl.FORWARD_TRAINING, dnnl.DIRECT),
        *(x_layout, any_W, bias, y_layout, *around),
    )
    weights, arguments = dnnl.WEIGHTS, {dnnl.SRC: x_layout, dnnl.DST: y_layout}
    if operation == _DATA:
        arguments = {dnnl.DIFF_DST: y_layout, dnnl.DIFF_SRC: x_layout}
        layouts = x_layout, any_W, y_layout
        choice = AlgorithmChoice(
            operation, engine, dnnl.DIRECT, *layouts, *around, choice
        )
    elif operation == _WEIGHTS:
        weights = dnnl.DIFF_WEIGHTS
        arguments = {dnnl.SRC: x_layout, dnnl.DIFF_DST: y_layout}
        layouts = x_layout, any_W, None, y_layout
        choice = AlgorithmChoice(
            operation, engine, dnnl.DIRECT, *layouts, *around, choice
        )
    if choice.name.startswith("ref"):
        return None
    chosen = choice.layout(weights)
    arguments[weights] = chosen
    if bias is not None:
        arguments[dnnl.BIAS] = bias
    ends = (chosen, plain_W) if operation == _WEIGHTS else (plain_W, chosen)
    reorder = AlgorithmChoice(
        "reorder",
        *(ends[0], engine, ends[1], engine),
        is_added=is_added and operation == _WEIGHTS,
    )
    return _Convolution(
        Primitive(choice, arguments),
        Primitive(reorder, {dnnl.SRC: ends[0], dnnl.DST: ends[1]}),
        chosen,
    )


def _suits_products(
    operation: str, W: Shape, geometry: Geometry, x: Shape, y: Shape
) -> bool:
    """Returns whether products of gathered windows are faster, as measured."""
    if operation == _WEIGHTS and math.prod(W) >= _LARGE_WEIGHTS:
        return True
    if max(geometry.kernel) == 1 and max(geometry.stride) > 1:
        return True
    # Windows of small maps with a border read more zeros than inputs. oneDNN
    # multiplies by all these zeros.
    reads = taps = 1
    for n, out, k, s, p, d in zip(x[1:-1], y[1:-1], *geometry[:4]):
        positions = np.add.outer(np.arange(out) * s, np.arange(k) * d) - p
        reads *= np.count_nonzero((positions >= 0) & (positions < n))
        taps *= positions.size
    return 2 * reads < taps


def strides(shape: Shape) -> Shape:
    """Returns the strides of a C contiguous array, in elements."""
    return tuple(math.prod(shape[i:]) for i in range(1, len(shape) + 1))


def channels_last(shape: Shape, dtype: str = "float32") -> Layout:
    """Returns the layout of (N, *sizes, C), which oneDNN sees as (N, C, *sizes)."""
    axes = 0, len(shape) - 1, *range(1, len(shape) - 1)
    steps = strides(shape)
    return Layout([shape[i] for i in axes], [steps[i] for i in axes], dtype)


def windows(geometry: Geometry, x: Shape, y: Shape) -> tuple:
    """Returns strides, dilations less one, and the zeros before and behind."""
    stride, pad, dilation = geometry[1:4]
    behind = [
        # A stride may end before all zeros were read, or behind them.
        max(p, (out - 1) * s + d * (k - 1) + 1 - n - p)
        for n, out, k, s, p, d in zip(x, y, *geometry[:4])
    ]
    return tuple(
        dnnl.Dims(*each) for each in (stride, [d - 1 for d in dilation], pad, behind)
    )


def _complain(reason: str) -> None:
    """Warns, once, that BLAS and Numba compute what oneDNN refuses."""
    if not _complaints:
        _complaints.append(reason)
        warnings.warn(
            f"chainer_kernels leaves to BLAS and Numba what oneDNN refuses: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
