"""Linear functions and products of matrices, by the provider that is active."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np

from chainer_kernels import providers, threads
from chainer_kernels.bfloat16 import narrowing_once, rounded
from chainer_kernels.layouts import are_float32
from chainer_kernels.product_dtype import BFLOAT16, FLOAT32, record

Arrays = tuple[np.ndarray, ...]

#: Multiplications of a stack of products below which one core has them sooner.
_SMALLEST_STACK = 1 << 25


def linear(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``LinearFunction.forward``."""
    if not are_float32(*inputs) or _is_recorded():
        return NotImplemented
    function._config_use_ideep = chainer.config.use_ideep
    x, W, *b = map(as_matrix, inputs)
    provider = providers.of(record(function))
    y = provider.product_with_weights(x, W, True, *b)
    function.retain_inputs((0, 1))
    return (y,)


def linear_grad_data(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``LinearGradData.forward``."""
    if not are_float32(*inputs) or _is_recorded():
        return NotImplemented
    function._config_use_ideep = chainer.config.use_ideep
    function.retain_inputs((0, 1))
    W, gy = map(as_matrix, inputs)
    return (providers.of(record(function)).product_with_weights(gy, W),)


def linear_grad_weight(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``LinearGradWeight.forward``."""
    if function._w_dtype != np.float32 or not are_float32(*inputs) or _is_recorded():
        return NotImplemented
    function._config_use_ideep = chainer.config.use_ideep
    function.retain_inputs((0, 1))
    x, gy = map(as_matrix, inputs)
    return (providers.of(record(function)).product(gy.T, x),)


def matmul(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``MatMul.forward``.

    A stack of matrices whose right matrix is the same is multiplied as one matrix.
    """
    a, b = inputs
    if (
        not are_float32(a, b)
        or function.dtype not in (None, np.float32)
        or min(a.ndim, b.ndim) < 2
    ):
        return NotImplemented
    function.retain_inputs((0, 1))
    if function.transa:
        a = a.swapaxes(-1, -2)
    if function.transb:
        b = b.swapaxes(-1, -2)
    if function.transc:
        a, b = b.swapaxes(-1, -2), a.swapaxes(-1, -2)
    dtype = record(function)
    if b.ndim > 2:
        return (_products(a, b) if dtype == FLOAT32 else _narrow_products(a, b),)
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
    y = providers.of(dtype).product(as_matrix(rows), as_matrix(b))
    return (y.reshape(*a.shape[:-1], b.shape[-1]),)


def _products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the products of two stacks of matrices, on several cores if it pays."""
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    y = np.empty((*leading, a.shape[-2], b.shape[-1]), np.float32)
    n_multiplications = y.size * a.shape[-1]
    # One product has all threads of BLAS.
    is_small = n_multiplications < _SMALLEST_STACK or len(y) == 1
    if is_small or threads.blas_threads() == 1:
        with threads.all_blas_threads():
            return np.matmul(a, b, out=y)
    a = np.broadcast_to(a, (*leading, *a.shape[-2:]))
    b = np.broadcast_to(b, (*leading, *b.shape[-2:]))

    def compute(start: int, end: int) -> None:
        np.matmul(a[start:end], b[start:end], out=y[start:end])

    with threads.one_blas_thread():
        threads.run_ranges(compute, len(y), size=n_multiplications // len(y))
    return y


def _narrow_products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the products of two stacks of matrices, rounded to bfloat16."""
    y = providers.of(BFLOAT16).product_of_stacks(a, b)
    return _products(rounded(a), rounded(b)) if y is None else y


def rounding_once(
    grad_outputs: Sequence[chainer.Variable | None],
) -> contextlib.AbstractContextManager:
    """Returns a block in which the gradient of an output is rounded once.

    The products for the gradients of an input and of weights both read it.

    Args:
        grad_outputs: Gradients of a function's outputs.
    """
    # A hook may change what it sees.
    if len(grad_outputs) > 1 or chainer.get_function_hooks():
        return contextlib.nullcontext()
    (gradient,) = (None if g is None else g.array for g in grad_outputs)
    is_single = are_float32(gradient)
    return narrowing_once(gradient) if is_single else contextlib.nullcontext()


def as_matrix(a: np.ndarray) -> np.ndarray:
    """Returns an array that is contiguous, perhaps seen transposed."""
    return a if a.flags.c_contiguous or a.flags.f_contiguous else a.copy("C")


def _is_recorded() -> bool:
    """Returns whether Chainer's static graph wants to repeat calls of its functions."""
    return chainer.config.schedule_func is not None
