"""Products and convolutions of whole numbers of 8 bits, by oneDNN.

::

    x uint8 (N, I),         W int8 (O, I)               ->  int32 (N, O)
    x uint8 (N, *sizes, C), W int8 (O, C / groups, ...) ->  int32 (N, *sizes, O)

Sums are exact, and offered where the processor has instructions that add up in 32 bits.
Instructions of older processors add two products in 16 bits, which do not hold all
sums. oneDNN can also subtract a zero point from x, but then rounds sums to float32 on
their way. Some of its convolutions round so in any case; they serve for few terms only.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from typing import NamedTuple

import numpy as np

from chainer_kernels import providers
from chainer_kernels.geometry import Geometry
from chainer_kernels.providers import onednn, onednn_convolutions
from chainer_kernels.providers import onednn_library as dnnl
from chainer_kernels.providers.onednn_library import AlgorithmChoice, Layout, Primitive

#: How many products and convolutions are kept.
_KEPT = 1024

#: Terms of a sum, each up to 255 times 128, that float32 holds.
EXACT_TERMS = 512

#: Instructions that add up in 32 bits, and the bits by which oneDNN knows them.
INSTRUCTIONS = {"AMX": 0xFEF, "AVX-512 VNNI": 0x67, "AVX VNNI": 0xF}

Shape = tuple[int, ...]


class _Convolution(NamedTuple):
    """A convolution of certain shapes.

    Attributes:
        compute: Takes weights in the layout of its choice.
        reorder: Turns weights into that layout.
        n_bytes: Bytes of weights in that layout.
    """

    compute: Primitive
    reorder: Primitive
    n_bytes: int


def instructions() -> str | None:
    """Returns the name of the instructions; ``None`` where nothing is offered.

    The provider must be oneDNN. Instructions above ``ONEDNN_MAX_CPU_ISA`` do not count.
    """
    if providers.active() is not onednn:
        return None
    found = dnnl.library().get_effective_cpu_isa()
    return next((k for k, bits in INSTRUCTIONS.items() if found & bits == bits), None)


def has_product(x: Shape, W: Shape) -> bool:
    """Returns whether a shape has a fast product, if :func:`instructions` has any."""
    return _product(_thread(), x, W) is not None


def product(x: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Returns ``x @ W.T``, int32.

    Sums that have more than 32 bits lose those in front.

    Args:
        x: (N, I), uint8, C contiguous.
        W: (O, I), int8, C contiguous.
    """
    y = np.empty((len(x), len(W)), np.int32)
    _product(_thread(), x.shape, W.shape)(x, y, W)
    return y


def has_convolution(x: Shape, W: Shape, geometry: Geometry) -> bool:
    """Returns whether a shape has a fast convolution, given :func:`instructions`."""
    return _convolution(_thread(), x, W, geometry) is not None


def convolution(x: np.ndarray, W: np.ndarray, geometry: Geometry) -> np.ndarray:
    """Returns a convolution, int32.

    Args:
        x: (N, *sizes, C), uint8, C contiguous.
        W: (O, C / groups, *kernel), int8, C contiguous.
        geometry: The convolution's. Padding is with 0, whatever stands for 0 in x.
    """
    found = _convolution(_thread(), x.shape, W.shape, geometry)
    turned = dnnl.empty(found.n_bytes)
    found.reorder(W, turned)
    y = np.empty(_outputs(x.shape, W.shape, geometry), np.int32)
    found.compute(x, y, turned)
    return y


def _outputs(x: Shape, W: Shape, geometry: Geometry) -> Shape:
    """Returns the shape of a convolution's output."""
    return (x[0], *geometry.output_sizes(x[1:-1]), W[0])


def _thread() -> tuple[int, int]:
    """Returns whose primitives these are: they serve one thread, of one process."""
    return os.getpid(), threading.get_ident()


def _is_usable(choice: AlgorithmChoice, n_terms: int) -> bool:
    """Returns whether an implementation is fast, and exact for sums of ``n_terms``."""
    is_fast = not choice.name.startswith("ref")
    return is_fast and (n_terms <= EXACT_TERMS or choice.name.startswith("brg"))


@functools.lru_cache(_KEPT)
def _product(thread: tuple[int, int], x: Shape, W: Shape) -> Primitive | None:
    (n_rows, n_inputs), n_outputs = x, W[0]
    if not n_rows * n_inputs * n_outputs:
        return None
    x_layout = Layout(x, (n_inputs, 1), "uint8")
    y_layout = Layout((n_rows, n_outputs), (n_outputs, 1), "int32")
    # Weights as they are stored: oneDNN turns them, part by part, while they are in
    # the cache, and a copy in a layout of its choice would be hardly faster.
    W_layout = Layout((n_inputs, n_outputs), (1, n_inputs), "int8")
    engine = dnnl.library().engine
    try:
        choice = AlgorithmChoice("matmul", engine, x_layout, W_layout, None, y_layout)
    except dnnl.OneDNNError:
        return None
    if not _is_usable(choice, n_inputs):
        return None
    layouts = {dnnl.SRC: x_layout, dnnl.DST: y_layout, dnnl.WEIGHTS: W_layout}
    return Primitive(choice, layouts)


@functools.lru_cache(_KEPT)
def _convolution(
    thread: tuple[int, int], x: Shape, W: Shape, geometry: Geometry
) -> _Convolution | None:
    y = _outputs(x, W, geometry)
    if min(*x, *W, *y) <= 0:
        return None
    n_terms = math.prod(W[1:])
    if geometry.groups > 1:
        W = (geometry.groups, W[0] // geometry.groups, *W[1:])
    plain = Layout(W, onednn_convolutions.strides(W), "int8")
    x_layout, y_layout = (
        onednn_convolutions.channels_last(shape, dtype)
        for shape, dtype in ((x, "uint8"), (y, "int32"))
    )
    engine = dnnl.library().engine
    try:
        choice = AlgorithmChoice(
            "convolution_forward",
            *(engine, dnnl.FORWARD_TRAINING, dnnl.DIRECT),
            *(x_layout, Layout(W, dtype="int8"), None, y_layout),
            *onednn_convolutions.windows(geometry, x[1:-1], y[1:-1]),
        )
        if not _is_usable(choice, n_terms):
            return None
        chosen = choice.layout(dnnl.WEIGHTS)
        reorder = AlgorithmChoice("reorder", plain, engine, chosen, engine)
    except dnnl.OneDNNError:
        return None
    layouts = {dnnl.SRC: x_layout, dnnl.DST: y_layout, dnnl.WEIGHTS: chosen}
    return _Convolution(
        Primitive(choice, layouts),
        Primitive(reorder, {dnnl.SRC: plain, dnnl.DST: chosen}),
        chosen.n_bytes,
    )
