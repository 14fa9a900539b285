"""Linear functions and products of matrices, by the provider that is active."""

from __future__ import annotations

import math
from typing import Any

import chainer
import numpy as np

from chainer_kernels.layouts import are_float32
from chainer_kernels.providers import active

Arrays = tuple[np.ndarray, ...]


def linear(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``LinearFunction.forward``."""
    if not are_float32(*inputs) or _is_recorded():
        return NotImplemented
    function._config_use_ideep = chainer.config.use_ideep
    x, W, *b = map(_as_matrix, inputs)
    y = active().product(x, W.T)
    for bias in b:
        y += bias
    function.retain_inputs((0, 1))
    return (y,)


def linear_grad_data(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``LinearGradData.forward``."""
    if not are_float32(*inputs) or _is_recorded():
        return NotImplemented
    function._config_use_ideep = chainer.config.use_ideep
    function.retain_inputs((0, 1))
    W, gy = map(_as_matrix, inputs)
    return (active().product(gy, W),)


def linear_grad_weight(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``LinearGradWeight.forward``."""
    if function._w_dtype != np.float32 or not are_float32(*inputs) or _is_recorded():
        return NotImplemented
    function._config_use_ideep = chainer.config.use_ideep
    function.retain_inputs((0, 1))
    x, gy = map(_as_matrix, inputs)
    return (active().product(gy.T, x),)


def matmul(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``MatMul.forward``.

    Of stacks of matrices, those that share the right matrix are one.
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
    if b.ndim > 2:
        return (np.matmul(a, b),)
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
    y = active().product(_as_matrix(rows), _as_matrix(b))
    return (y.reshape(*a.shape[:-1], b.shape[-1]),)


def _as_matrix(a: np.ndarray) -> np.ndarray:
    """Returns an array that is contiguous, perhaps seen transposed."""
    return a if a.flags.c_contiguous or a.flags.f_contiguous else a.copy("C")


def _is_recorded() -> bool:
    """Says whether Chainer's static graph wants to repeat calls of its functions."""
    return chainer.config.schedule_func is not None
