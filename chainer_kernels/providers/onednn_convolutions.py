"""Convolutions by oneDNN, in float32 or with operands rounded to bfloat16.

Weights are turned into the layout that oneDNN chooses, once a call, or once a scope
(:mod:`chainer_kernels.prepared_weights`): it has nothing fast for weights as Chainer
has them. In bfloat16 the same pass rounds them.

::

    W (O, C, H, W) -reorder-> chosen layout
    x (N, H, W, C) ------------------------- convolution -> y (N, H, W, O), float32

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

from chainer_kernels import kept_weights
from chainer_kernels.bfloat16 import narrowed
from chainer_kernels.geometry import Geometry
from chainer_kernels.product_dtype import FLOAT32
from chainer_kernels.providers import blas
from chainer_kernels.providers import onednn_library as dnnl
from chainer_kernels.providers.onednn_library import AlgorithmChoice, Layout, Primitive

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


def forward(
    x: np.ndarray,
    W: np.ndarray,
    b: np.ndarray | None,
    geometry: Geometry,
    dtype: str = FLOAT32,
) -> np.ndarray | None:
    """Returns the output of a convolution; ``None`` where others compute it faster."""
    y_shape = (len(x), *geometry.output_sizes(x.shape[1:-1]), len(W))
    found = find(_FORWARD, x.shape, W.shape, y_shape, geometry, b is not None, dtype)
    if found is None:
        return None
    y = np.empty(y_shape, np.float32)
    bias = () if b is None else (b,)
    found.compute(_operand(x, dtype), y, _turned(W, found), *bias)
    return y


def data(
    gy: np.ndarray,
    W: np.ndarray,
    geometry: Geometry,
    size: Shape,
    dtype: str = FLOAT32,
) -> np.ndarray | None:
    """Returns the gradient of a convolution's input; ``None`` as :func:`forward`."""
    gx_shape = (len(gy), *size, W.shape[1] * geometry.groups)
    found = find(_DATA, gx_shape, W.shape, gy.shape, geometry, False, dtype)
    if found is None:
        return None
    gx = np.empty(gx_shape, np.float32)
    found.compute(_operand(gy, dtype), gx, _turned(W, found))
    return gx


def weights(
    x: np.ndarray,
    gy: np.ndarray,
    geometry: Geometry,
    out: np.ndarray | None,
    accumulate: bool,
    dtype: str = FLOAT32,
) -> np.ndarray | None:
    """Returns the gradient of a convolution's weights; ``None`` as :func:`forward`."""
    W_shape = _weights_shape(x.shape, gy.shape, geometry)
    found = find(_WEIGHTS, x.shape, W_shape, gy.shape, geometry, accumulate, dtype)
    if found is None:
        return None
    gW = blas.result(W_shape, out)
    turned = dnnl.empty(found.layout.n_bytes)
    found.compute(_operand(x, dtype), _operand(gy, dtype), turned)
    found.reorder(turned, gW)
    return gW


def has_weights(x: Shape, gy: Shape, geometry: Geometry, dtype: str = FLOAT32) -> bool:
    """Returns whether :func:`weights` adds gradients of such shapes up."""
    W_shape = _weights_shape(x, gy, geometry)
    return find(_WEIGHTS, x, W_shape, gy, geometry, True, dtype) is not None


def _weights_shape(x: Shape, gy: Shape, geometry: Geometry) -> Shape:
    return (gy[-1], x[-1] // geometry.groups, *geometry.kernel)


def _operand(array: np.ndarray, dtype: str) -> np.ndarray:
    return array if dtype == FLOAT32 else narrowed(array)


def _turned(W: np.ndarray, found: _Convolution) -> np.ndarray:
    """Returns weights in the layout that was chosen, perhaps kept."""

    def turned() -> np.ndarray:
        made = dnnl.empty(found.layout.n_bytes)
        found.reorder(W, made)
        return made

    return kept_weights.kept(W, found.layout, found.layout.n_bytes, turned)


def find(
    operation: str,
    x: Shape,
    W: Shape,
    y: Shape,
    geometry: Geometry,
    is_added: bool,
    dtype: str,
) -> _Convolution | None:
    """Returns a convolution, made or kept; ``None`` where others are better.

    Args:
        operation: One of those above.
        x: Shape of the input.
        W: Shape of the weights.
        y: Shape of the output.
        geometry: The convolution's.
        is_added: Whether there is a bias to add, or gradients to be added to.
        dtype: Dtype of the operands; the result is float32.
    """
    # A primitive serves one thread, and relies on the threads of its process.
    thread = os.getpid(), threading.get_ident()
    return _make(thread, operation, x, W, y, geometry, is_added, dtype)


@functools.lru_cache(_KEPT)
def _make(
    thread: tuple[int, int],
    operation: str,
    x: Shape,
    W: Shape,
    y: Shape,
    geometry: Geometry,
    is_added: bool,
    dtype: str,
) -> _Convolution | None:
    try:
        return _chosen(operation, x, W, y, geometry, is_added, dtype)
    except dnnl.OneDNNError as error:
        # The float32 convolution of rounded operands gives the same numbers.
        if dtype == FLOAT32:
            _complain(f"{operation} of {x=}, {W=}, {y=}, {geometry}: {error}")
        return None


def _chosen(
    operation: str,
    x: Shape,
    W: Shape,
    y: Shape,
    geometry: Geometry,
    is_added: bool,
    dtype: str,
) -> _Convolution | None:
    is_single = dtype == FLOAT32
    if not math.prod((*x, *W, *y)):
        return None
    if is_single and _suits_products(operation, W, geometry, x, y):
        return None
    if geometry.groups > 1:
        W = (geometry.groups, W[0] // geometry.groups, *W[1:])
    engine = dnnl.library().engine
    any_W, plain_W = Layout(W, dtype=dtype), Layout(W, strides(W))
    x_layout, y_layout = channels_last(x, dtype), channels_last(y)
    bias = Layout(y[-1:], (1,)) if is_added and operation == _FORWARD else None
    around = windows(geometry, x[1:-1], y[1:-1])
    choice = AlgorithmChoice(
        _FORWARD,
        *(engine, dnnl.FORWARD_TRAINING, dnnl.DIRECT),
        *(x_layout, any_W, bias, y_layout, *around),
    )
    weights, arguments = dnnl.WEIGHTS, {dnnl.SRC: x_layout, dnnl.DST: y_layout}
    if operation == _DATA:
        x_layout, y_layout = channels_last(x), channels_last(y, dtype)
        arguments = {dnnl.DIFF_DST: y_layout, dnnl.DIFF_SRC: x_layout}
        layouts = x_layout, any_W, y_layout
        choice = AlgorithmChoice(
            operation, engine, dnnl.DIRECT, *layouts, *around, choice
        )
    elif operation == _WEIGHTS:
        weights, y_layout = dnnl.DIFF_WEIGHTS, channels_last(y, dtype)
        arguments = {dnnl.SRC: x_layout, dnnl.DIFF_DST: y_layout}
        layouts = x_layout, Layout(W), None, y_layout
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
