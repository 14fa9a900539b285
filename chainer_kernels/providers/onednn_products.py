"""Products of few rows with weights, in a layout that oneDNN chooses for the weights.

oneDNN's ``sgemm`` turns the weights, part by part, in each call. For few rows that
takes longer than to multiply. In a layout of its choice, turned once, a product takes
the same time for each row, however few there are.

::

    weights, kept       W -reorder-> chosen layout     x, chosen layout -> y
    no room to keep     x, W as it is -> y             by the same code: the same bits

A convolution of few and small images, whose windows are few rows, is one product as
well. The product covers all taps, with zeros beyond the border. That costs less than to
read the weights for each part of the image.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np

from chainer_kernels import kept_weights
from chainer_kernels.geometry import Geometry
from chainer_kernels.kept_weights import Weights
from chainer_kernels.providers import onednn_library as dnnl
from chainer_kernels.providers.onednn_library import AlgorithmChoice, Layout, Primitive

#: How many products are kept.
_KEPT = 1024
#: Rows up to which a product gains, and uses of the weights from which on it gains more
#: than it takes to turn them.
_MOST_ROWS, _FEWEST_USES = 160, 4
#: Multiplications of a product below which NumPy has it before oneDNN has begun.
SMALLEST_PRODUCT = 1 << 20
#: Pixels of all outputs up to which a convolution gains as one product.
_MOST_PIXELS = 64

Shape = tuple[int, ...]


class _Product(NamedTuple):
    """A product with weights, for matrices of certain shapes.

    Attributes:
        compute: Takes weights in the layout of its choice.
        compute_plain: Takes them as they are, and gives the same bits.
        reorder: Turns weights into that layout.
        layout: The layout.
    """

    compute: Primitive
    compute_plain: Primitive
    reorder: Primitive
    layout: dnnl.ChosenLayout


def product(a: np.ndarray, W: np.ndarray, is_transposed: bool) -> np.ndarray | None:
    """Returns ``a @ W.T``, or ``a @ W``; ``None`` where that gains nothing.

    Args:
        a: (rows, I), or (rows, O).
        W: (O, I), and contiguous. It must be a parameter's own, in a scope.
        is_transposed: Whether W is transposed.
    """
    m, k = a.shape
    n = W.shape[0 if is_transposed else 1]
    # A use that gains nothing counts as well, or it would look like one by others.
    weights = kept_weights.of(W)
    if weights is None or n == 1 or m * n * k < SMALLEST_PRODUCT:
        return None
    if not 1 < m <= _MOST_ROWS or weights.n_uses < _FEWEST_USES:
        return None
    return _computed(a, weights, is_transposed, n, "product", lambda: W)


def convolution(
    x: np.ndarray, W: np.ndarray, b: np.ndarray | None, geometry: Geometry
) -> np.ndarray | None:
    """Returns the output of a convolution; ``None`` where that is not one product.

    Args:
        x: (N, *sizes, C), C contiguous.
        W: (O, C, *kernel), C contiguous.
        b: (O,) or nothing.
        geometry: The convolution's.
    """
    outputs = geometry.output_sizes(x.shape[1:-1])
    weights = _weights_of_few_pixels(len(x), outputs, W, geometry)
    if weights is None:
        return None
    n_outputs, n_inputs, taps = len(W), W.shape[1], math.prod(geometry.kernel)
    rows = _windows(x, geometry, outputs)

    def turned() -> np.ndarray:
        by_taps = W.reshape(n_outputs, n_inputs, taps).transpose(0, 2, 1)
        return np.ascontiguousarray(by_taps).reshape(n_outputs, -1)

    y = _computed(rows, weights, True, n_outputs, ("convolution", geometry), turned)
    if y is None:
        return None
    if b is not None:
        y += b
    return y.reshape(len(x), *outputs, n_outputs)


def convolution_data(
    gy: np.ndarray, W: np.ndarray, geometry: Geometry, size: Shape
) -> np.ndarray | None:
    """Returns the gradient of a convolution's input; ``None`` if not one product.

    Args:
        gy: (N, *sizes, O), C contiguous.
        W: (O, C, *kernel), C contiguous.
        geometry: The convolution's.
        size: The spatial sizes of the input.
    """
    spans = [d * (k - 1) for k, d in zip(geometry.kernel, geometry.dilation)]
    pad = tuple(span - p for span, p in zip(spans, geometry.pad))
    if max(geometry.stride) > 1 or min(pad) < 0:
        return None
    weights = _weights_of_few_pixels(len(gy), size, W, geometry)
    if weights is None:
        return None
    n_outputs, n_inputs, taps = len(W), W.shape[1], math.prod(geometry.kernel)
    rows = _windows(gy, geometry._replace(pad=pad), size)

    def turned() -> np.ndarray:
        # The gradient of an input adds up the taps in reverse order.
        by_taps = W.reshape(n_outputs, n_inputs, taps)[:, :, ::-1].transpose(2, 0, 1)
        return np.ascontiguousarray(by_taps).reshape(-1, n_inputs)

    gx = _computed(rows, weights, False, n_inputs, ("data", geometry), turned)
    return None if gx is None else gx.reshape(len(gy), *size, n_inputs)


def _weights_of_few_pixels(
    batch: int, outputs: Shape, W: np.ndarray, geometry: Geometry
) -> Weights | None:
    """Returns the weights of a convolution that is one product."""
    n_rows = batch * math.prod(outputs)
    if (
        geometry.groups > 1
        or not 1 < n_rows <= _MOST_PIXELS
        or min(W.shape[:2]) == 1
        or n_rows * W.size < SMALLEST_PRODUCT
    ):
        return None
    return kept_weights.of(W)


def _windows(x: np.ndarray, geometry: Geometry, outputs: Shape) -> np.ndarray:
    """Returns what windows of x read, zeros beyond the border, a row for each."""
    axes = list(zip(x.shape[1:-1], outputs, *geometry[:4]))
    # A stride may end before the border, or behind it.
    behind = [
        max(0, (o - 1) * s + d * (k - 1) + 1 - n - p) for n, o, k, s, p, d in axes
    ]
    around = [(p, q) for p, q in zip(geometry.pad, behind)]
    padded = np.pad(x, [(0, 0), *around, (0, 0)])
    steps = padded.strides[1:-1]
    windows = np.lib.stride_tricks.as_strided(
        padded,
        (len(x), *outputs, *geometry.kernel, x.shape[-1]),
        (
            padded.strides[0],
            *(s * step for s, step in zip(geometry.stride, steps)),
            *(d * step for d, step in zip(geometry.dilation, steps)),
            padded.strides[-1],
        ),
        writeable=False,
    )
    return windows.reshape(len(x) * math.prod(outputs), -1)


def _computed(
    a: np.ndarray,
    weights: Weights,
    is_transposed: bool,
    n: int,
    key: Hashable,
    matrix: Callable[[], np.ndarray],
) -> np.ndarray | None:
    """Returns a product; ``None`` where oneDNN has no fast one.

    Args:
        a: (rows, inner size).
        weights: The weights, and the arrays kept for them.
        is_transposed: Whether the matrix of weights is transposed.
        n: Columns of the result.
        key: Identifies the matrix among those made of these weights.
        matrix: Makes the matrix of weights, C contiguous.
    """
    m, k = a.shape
    # A primitive serves one thread, and relies on the threads of its process.
    thread = os.getpid(), threading.get_ident()
    found = _make(thread, m, k, n, is_transposed)
    if found is None:
        return None
    y = np.empty((m, n), np.float32)
    a = np.ascontiguousarray(a)

    def packed() -> np.ndarray:
        turned = dnnl.empty(found.layout.n_bytes)
        found.reorder(matrix(), turned)
        return turned

    kept = weights.kept(
        (key, is_transposed, found.layout), found.layout.n_bytes, packed
    )
    if kept is None:
        found.compute_plain(a, y, matrix())
    else:
        found.compute(a, y, kept)
    return y


@functools.lru_cache(_KEPT)
def _make(
    thread: tuple[int, int], m: int, k: int, n: int, is_transposed: bool
) -> _Product | None:
    engine = dnnl.library().engine
    a, y = Layout((m, k), (k, 1)), Layout((m, n), (n, 1))
    plain = Layout((k, n), (1, k) if is_transposed else (n, 1))
    try:
        choices = [
            AlgorithmChoice("matmul", engine, a, layout, None, y)
            for layout in (Layout((k, n)), plain)
        ]
        names = {choice.name for choice in choices}
        # Implementations by blocks, `brg...`, add up alike for each layout of weights.
        if len(names) > 1 or not names.pop().startswith("brg"):
            return None
        chosen = choices[0].layout(dnnl.WEIGHTS)
        reorder = AlgorithmChoice("reorder", plain, engine, chosen, engine)
    except dnnl.OneDNNError:
        return None
    ends = {dnnl.SRC: a, dnnl.DST: y}
    return _Product(
        Primitive(choices[0], {**ends, dnnl.WEIGHTS: chosen}),
        Primitive(choices[1], {**ends, dnnl.WEIGHTS: plain}),
        Primitive(reorder, {dnnl.SRC: plain, dnnl.DST: chosen}),
        chosen,
    )
