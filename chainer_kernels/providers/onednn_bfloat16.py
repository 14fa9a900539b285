"""Products and convolutions of operands rounded to bfloat16, by oneDNN.

Activations are rounded once a call, by a loop, and weights once a scope
(:mod:`chainer_kernels.prepared_weights`). With AMX, :mod:`.amx_products` computes
products of two matrices::

    x float32 -> bfloat16 --.
    W float32 -> bfloat16 ---+--> AMX or AVX-512-BF16, sums in float32 -> y float32

These instructions take operands and sums below 2^-126 for zero. What oneDNN has no fast
code for, such as small products, is computed in float32 by :mod:`.rounded`.
"""

from __future__ import annotations

import functools

import numpy as np

from chainer_kernels import kept_weights
from chainer_kernels.bfloat16 import narrowed
from chainer_kernels.geometry import Geometry
from chainer_kernels.product_dtype import BFLOAT16
from chainer_kernels.providers import (
    amx_products,
    onednn,
    onednn_convolutions,
    onednn_stacks,
)
from chainer_kernels.providers import onednn_library as dnnl
from chainer_kernels.providers.amx_products import Operand
from chainer_kernels.providers.onednn_products import SMALLEST_PRODUCT
from chainer_kernels.providers.rounded import RoundedOperands

NAME = "oneDNN in bfloat16"

#: Instructions that multiply bfloat16, and the bits by which oneDNN knows them.
INSTRUCTIONS = {"AMX": 0xFEF, "AVX-512-BF16": 0xE7}

Shape = tuple[int, ...]

#: Computes what oneDNN has no fast code for.
_in_float32 = RoundedOperands(onednn)


def instructions() -> str | None:
    """Returns the name of the instructions; ``None`` where there are none.

    Instructions above ``ONEDNN_MAX_CPU_ISA`` do not count.
    """
    found = dnnl.library().get_effective_cpu_isa()
    return next((k for k, bits in INSTRUCTIONS.items() if found & bits == bits), None)


@functools.cache
def _has_amx_loops() -> bool:
    """Returns whether products of matrices are those of :mod:`.amx_products`.

    oneDNN has asked the kernel for AMX where it found these instructions.
    """
    return instructions() == "AMX" and amx_products.is_usable()


def as_operand(W: np.ndarray) -> np.ndarray | Operand:
    """Returns the right operand of several products, rounded once."""
    return amx_products.right(W) if _has_amx_loops() else narrowed(W)


def convolution(
    x: np.ndarray,
    W: np.ndarray,
    b: np.ndarray | None,
    geometry: Geometry,
    relu: bool = False,
) -> np.ndarray:
    """Returns the output of a convolution."""
    y = onednn_convolutions.forward(x, W, b, geometry, BFLOAT16)
    if y is None:
        return _in_float32.convolution(x, W, b, geometry, relu)
    return onednn.with_relu(y) if relu else y


def convolution_data(
    gy: np.ndarray, W: np.ndarray, geometry: Geometry, size: Shape
) -> np.ndarray:
    """Returns the gradient of a convolution's input."""
    gx = onednn_convolutions.data(gy, W, geometry, size, BFLOAT16)
    return _in_float32.convolution_data(gy, W, geometry, size) if gx is None else gx


def convolution_weights(
    x: np.ndarray,
    gy: np.ndarray,
    geometry: Geometry,
    out: np.ndarray | None = None,
    accumulate: bool = False,
) -> np.ndarray:
    """Returns the gradient of a convolution's weights, written or added to ``out``."""
    gW = onednn_convolutions.weights(x, gy, geometry, out, accumulate, BFLOAT16)
    if gW is None:
        return _in_float32.convolution_weights(x, gy, geometry, out, accumulate)
    return gW


def turns_weights(x: Shape, gy: Shape, geometry: Geometry) -> bool:
    """Returns whether gradients of weights are made in float32, and turned back."""
    is_found = onednn_convolutions.has_weights(x, gy, geometry, BFLOAT16)
    return not is_found and _in_float32.turns_weights(x, gy, geometry)


add_turned_weights = _in_float32.add_turned_weights
turn_weights_back = _in_float32.turn_weights_back


def product(
    a: np.ndarray,
    b: np.ndarray | Operand,
    out: np.ndarray | None = None,
    accumulate: bool = False,
) -> np.ndarray:
    """Returns a product of matrices, written or added to ``out`` if there is one.

    Args:
        a: (m, k), of float32.
        b: (k, n), of float32, or from :func:`as_operand`.
        out: (m, n) of float32, or nothing.
        accumulate: Whether the product is added to ``out``.
    """
    if isinstance(b, Operand):
        return amx_products.product(a, b, out, accumulate)
    if not onednn.has_product(a, b, out):
        return _in_float32.product(a, b, out, accumulate)
    if _has_amx_loops():
        return amx_products.product(a, b, out, accumulate)
    gemm = dnnl.library().gemm_bf16bf16f32
    return onednn.multiply(gemm, narrowed(a), narrowed(b), out, accumulate)


def product_with_weights(
    a: np.ndarray,
    W: np.ndarray,
    is_transposed: bool = False,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """Returns a product with weights that may be kept, turned around or not."""
    if not _has_amx_loops():
        codes = kept_weights.kept(W, BFLOAT16, W.nbytes // 2, lambda: narrowed(W))
        y = product(a, codes.T if is_transposed else codes)
        if bias is not None:
            y += bias
        return y
    b = W.T if is_transposed else W
    if not onednn.has_product(a, b, None):
        return _in_float32.product_with_weights(a, W, is_transposed, bias)
    weights = kept_weights.of(W)
    if weights is not None:
        key, n_bytes = (BFLOAT16, is_transposed), amx_products.n_bytes(*b.T.shape)
        b = weights.kept(key, n_bytes, lambda: amx_products.right(b)) or b
    return amx_products.product(a, b, bias=bias)


def product_of_stacks(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Returns the products of two stacks of matrices; ``None`` if others are better."""
    if b.shape[-1] * a.size < SMALLEST_PRODUCT or min(a.shape[-2], b.shape[-1]) == 1:
        return None
    return onednn_stacks.product(narrowed(a), narrowed(b))
