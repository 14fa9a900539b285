"""Batch normalization, with statistics of the batch or given ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from chainer_kernels.functions import channels, gpu_batch_normalization
from chainer_kernels.half_precision import in_float32, rounded
from chainer_kernels.layouts import are_float32, around, empty_like

Arrays = tuple[np.ndarray, ...]


def forward(
    implementation: Any,
    axis: tuple[int, ...],
    gamma: np.ndarray,
    x: np.ndarray,
    x_layout: Any,
    xp: Any,
    expander: Any,
    beta: np.ndarray,
    eps: float,
    decay: float,
    running_mean: np.ndarray | None,
    running_var: np.ndarray | None,
) -> tuple:
    """Stands for ``GeneralBatchNormalizationImpl.forward``."""
    if type(x) is not np.ndarray:
        return gpu_batch_normalization.forward(
            *(axis, gamma, x, x_layout, beta, eps, decay, running_mean, running_var)
        )
    running = [a for a in (running_mean, running_var) if a is not None]
    are_numpy = all(type(a) is np.ndarray for a in running)
    views = _views(x, [gamma, beta], axis) if are_numpy else None
    if views is None:
        return NotImplemented
    x_view, y, y_view = views
    moments = channels.moments(x_view)
    mean, var = (a.astype("f").reshape(gamma.shape) for a in moments)
    inv_std = np.reciprocal(np.sqrt(var + np.float32(eps)))
    channels.scale(x_view, mean, inv_std * gamma, beta, y_view)
    if running_mean is not None:
        m = x.size // gamma.size
        adjust = m / max(m - 1.0, 1.0)
        running_mean *= decay
        running_mean += (1 - decay) * mean
        running_var *= decay
        running_var += (1 - decay) * adjust * var
    y = rounded(y, x.dtype)
    return y, x_layout, running_mean, running_var, mean, var, inv_std, None


def backward(
    implementation: Any,
    axis: tuple[int, ...],
    gamma: np.ndarray,
    gy: np.ndarray,
    x: np.ndarray,
    x_layout: Any,
    xp: Any,
    expander: Any,
    mean: np.ndarray,
    inv_std: np.ndarray,
    eps: float,
    var: np.ndarray | None,
    forward_data: Any,
) -> tuple:
    """Stands for ``GeneralBatchNormalizationImpl.backward``."""
    if type(x) is not np.ndarray:
        return gpu_batch_normalization.backward(
            axis, gamma, gy, x, mean, inv_std, forward_data
        )
    views = _views(x, [gamma, mean, inv_std], axis, gy)
    if views is None:
        return NotImplemented
    x_view, gy_view, gx, gx_view = views
    gbeta, ggamma = _sums(x_view, gy_view, mean, inv_std)
    scale = gamma * inv_std
    share = gamma.size / x.size
    slope = scale * inv_std * ggamma * -share
    channels.combine(
        x_view, gy_view, mean, scale, slope, scale * gbeta * -share, gx_view
    )
    return rounded(gx, x.dtype), None, ggamma.astype("f"), gbeta.astype("f")


def fixed(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``FixedBatchNormalization.forward``."""
    x, gamma, beta, mean, var = inputs
    axis = function.axis
    if axis is None:
        axis = (0, *range(gamma.ndim + 1, x.ndim))
    views = _views(x, inputs[1:], axis)
    if views is None:
        return NotImplemented
    function.retain_inputs((0, 1, 3, 4))
    function.axis = axis
    function.key_axis = _key_axes(x, axis)
    function.expander = tuple(
        [slice(None) if i in function.key_axis else None for i in range(x.ndim)]
    )
    function.inv_var = np.reciprocal(var + np.float32(function.eps))
    function.inv_std = np.sqrt(function.inv_var)
    x_view, y, y_view = views
    channels.scale(x_view, mean, function.inv_std * gamma, beta, y_view)
    return (rounded(y, x.dtype),)


def fixed_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``FixedBatchNormalizationGrad.forward``."""
    x, gamma, mean, var, gy = inputs
    views = _views(x, [gamma, mean, var], function.axis, gy)
    if views is None or function.inv_std is None or function.inv_var is None:
        return NotImplemented
    function.retain_inputs((0, 1, 2, 4))
    function.retain_outputs((0, 1, 2, 3, 4))
    function.gamma_over_std = gamma * function.inv_std
    x_view, gy_view, gx, gx_view = views
    none = np.zeros_like(gamma)
    channels.scale(gy_view, none, function.gamma_over_std, none, gx_view)
    sums = _sums(x_view, gy_view, mean, function.inv_std)
    gbeta, ggamma = (a.astype("f") for a in sums)
    gmean = -function.gamma_over_std * gbeta
    gvar = np.float32(-0.5) * function.inv_var * (gamma * ggamma)
    return rounded(gx, x.dtype), ggamma, gbeta, gmean, gvar


def _key_axes(x: np.ndarray, axis: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the axes of the parameters."""
    return tuple([i for i in range(x.ndim) if i not in axis])


def _views(
    x: np.ndarray,
    parameters: Any,
    axis: tuple[int, ...],
    *others: np.ndarray,
) -> list[np.ndarray] | None:
    """Returns ``x`` and others around the parameters' axes, and an output twice.

    Returns:
        The views, a new array like ``x``, and that in the same view, all of float32;
        ``None`` for what is left to Chainer.
    """
    axes = _key_axes(x, axis)
    arrays = in_float32([x, *others])
    if not (are_float32(*arrays, *parameters) and x.size and axes):
        return None
    out = empty_like(arrays[0])
    views = around([*arrays, out], axes)
    return views and [*views[:-1], out, views[-1]]


def _sums(
    x: np.ndarray, gy: np.ndarray, mean: np.ndarray, inv_std: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the gradients of beta and gamma, in float64."""
    gbeta, ggamma = channels.products(x, gy, mean)
    return gbeta.reshape(mean.shape), ggamma.reshape(mean.shape) * inv_std
