"""Convolutions and products by oneDNN.

Activations stay as they are. :mod:`.onednn_convolutions` has the convolutions, and
:mod:`.onednn_products` products of few rows with weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from chainer_kernels import threads
from chainer_kernels.gemm import operand
from chainer_kernels.geometry import Geometry
from chainer_kernels.loops import activations
from chainer_kernels.providers import blas, onednn_convolutions, onednn_products
from chainer_kernels.providers import onednn_library as dnnl
from chainer_kernels.providers.onednn_products import SMALLEST_PRODUCT

NAME = "oneDNN"

Shape = tuple[int, ...]


def convolution(
    x: np.ndarray,
    W: np.ndarray,
    b: np.ndarray | None,
    geometry: Geometry,
    relu: bool = False,
) -> np.ndarray:
    """Returns the output of a convolution."""
    y = onednn_convolutions.forward(x, W, b, geometry)
    if y is None:
        y = onednn_products.convolution(x, W, b, geometry)
    if y is None:
        return blas.convolution(x, W, b, geometry, relu)
    return with_relu(y) if relu else y


def with_relu(y: np.ndarray) -> np.ndarray:
    """Replaces negative numbers by zero; oneDNN's own replaces a NaN as well."""
    threads.run_slices(activations.relu, [y.reshape(-1), y.reshape(-1)])
    return y


def convolution_data(
    gy: np.ndarray, W: np.ndarray, geometry: Geometry, size: Shape
) -> np.ndarray:
    """Returns the gradient of a convolution's input."""
    gx = onednn_convolutions.data(gy, W, geometry, size)
    if gx is None:
        gx = onednn_products.convolution_data(gy, W, geometry, size)
    return blas.convolution_data(gy, W, geometry, size) if gx is None else gx


def convolution_weights(
    x: np.ndarray,
    gy: np.ndarray,
    geometry: Geometry,
    out: np.ndarray | None = None,
    accumulate: bool = False,
) -> np.ndarray:
    """Returns the gradient of a convolution's weights, written or added to ``out``."""
    gW = onednn_convolutions.weights(x, gy, geometry, out, accumulate)
    if gW is None:
        return blas.convolution_weights(x, gy, geometry, out, accumulate)
    return gW


def turns_weights(x: Shape, gy: Shape, geometry: Geometry) -> bool:
    """Returns whether gradients of weights are made by BLAS, and turned back."""
    is_found = onednn_convolutions.has_weights(x, gy, geometry)
    return not is_found and blas.turns_weights(x, gy, geometry)


add_turned_weights, turn_weights_back = blas.add_turned_weights, blas.turn_weights_back


def product(
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray | None = None,
    accumulate: bool = False,
) -> np.ndarray:
    """Returns a product of matrices, written or added to ``out`` if there is one."""
    if not has_product(a, b, out):
        return blas.product(a, b, out, accumulate)
    return multiply(dnnl.library().sgemm, a, b, out, accumulate)


def has_product(a: np.ndarray, b: np.ndarray, out: np.ndarray | None) -> bool:
    """Returns whether oneDNN computes a product: large, into rows without gaps."""
    (m, k), n = a.shape, b.shape[1]
    # For a vector, oneDNN 3.2 adds 0 times what is in `out`, which may be no number.
    is_large = m * n * k >= SMALLEST_PRODUCT and min(m, n) > 1
    return is_large and (out is None or out.strides[1] == out.itemsize)


def multiply(
    gemm: Callable[..., int],
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray | None,
    accumulate: bool,
) -> np.ndarray:
    """Returns a product of matrices by a function of oneDNN.

    Args:
        gemm: The function, for matrices of the dtype of ``a`` and ``b``.
        a: (m, k).
        b: (k, n).
        out: (m, n) of float32; ``None`` for a new array.
        accumulate: Whether the product is added to ``out``.
    """
    (m, k), n = a.shape, b.shape[1]
    if out is None:
        out = np.empty((m, n), np.float32)
    left, is_left_transposed, left_stride = operand(a)
    right, is_right_transposed, right_stride = operand(b)
    dnnl.library().check(
        gemm(
            *(is_left_transposed, is_right_transposed, m, n, k, 1),
            *(left.__array_interface__["data"][0], left_stride),
            *(right.__array_interface__["data"][0], right_stride),
            *(int(accumulate), out.__array_interface__["data"][0]),
            out.strides[0] // out.itemsize,
        )
    )
    return out


def product_with_weights(
    a: np.ndarray,
    W: np.ndarray,
    is_transposed: bool = False,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """Returns a product with weights that may be kept, turned around or not."""
    y = onednn_products.product(a, W, is_transposed)
    if y is None:
        y = product(a, W.T if is_transposed else W)
    if bias is not None:
        y += bias
    return y


as_operand = blas.as_operand


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
