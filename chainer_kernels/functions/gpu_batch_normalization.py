"""Batch normalization of arrays of CuPy with statistics of the batch, by cuDNN.

With given statistics it is one pass over the array, and stays Chainer's. So do arrays
(N, C), whose sums CuPy adds up fast.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chainer_kernels.functions.gpu_choice import choice, takes
from chainer_kernels.providers import cudnn

Array = Any


def forward(
    axis: tuple[int, ...],
    gamma: Array,
    x: Array,
    x_layout: Any,
    beta: Array,
    eps: float,
    decay: float,
    running_mean: Array | None,
    running_var: Array | None,
) -> tuple:
    """Returns what ``GeneralBatchNormalizationImpl.forward`` does."""
    running = None if running_mean is None else (running_mean, running_var)
    if not (
        _is_covered(axis, x, gamma, beta)
        and (running is None or all(_is_float(a, x) for a in running))
    ):
        return NotImplemented
    normalized = cudnn.batch_normalization(
        x, gamma, beta, running, eps, decay, choice(x)
    )
    if normalized is None:
        return NotImplemented
    y, *statistics = normalized
    dtype = np.promote_types(x.dtype, gamma.dtype)
    mean, inv_std = (a.astype(dtype, copy=False) for a in statistics)
    # Backward gets the last one back: the statistics before they were rounded.
    return y, x_layout, running_mean, running_var, mean, None, inv_std, statistics


def backward(
    axis: tuple[int, ...],
    gamma: Array,
    gy: Array,
    x: Array,
    mean: Array,
    inv_std: Array,
    forward_data: Any,
) -> tuple:
    """Returns what ``GeneralBatchNormalizationImpl.backward`` does."""
    if not (
        _is_covered(axis, x, gamma)
        and gy.dtype == x.dtype
        and all(_is_float(a, x) for a in (gy, mean, inv_std))
    ):
        return NotImplemented
    statistics = (mean, inv_std) if forward_data is None else forward_data
    gradients = cudnn.batch_normalization_backward(gy, x, gamma, *statistics, choice(x))
    if gradients is None:
        return NotImplemented
    gx, *others = gradients
    return (gx, None, *(a.astype(gamma.dtype, copy=False) for a in others))


def _is_covered(axis: tuple[int, ...], x: Array, *parameters: Array) -> bool:
    """Returns whether each channel (second axis) is normalized over all other axes."""
    return (
        x.ndim > 2
        and takes(x)
        and tuple(axis) == (0, *range(2, x.ndim))
        # A channel of one number has no variance.
        and x.size > x.shape[1]
        and all(_is_float(a, x) for a in parameters)
    )


def _is_float(a: Array, x: Array) -> bool:
    return type(a) is type(x) and a.dtype.char in "ef"
