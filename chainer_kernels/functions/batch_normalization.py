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
    mean, var, inv_std = statistics(x_view, gamma, eps)
    channels.scale(x_view, mean, inv_std * gamma, beta, y_view)
    move(running_mean, running_var, mean, var, decay, x.size // gamma.size)
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
    gbeta, ggamma = sums(channels.products(x_view, gy_view, mean), mean, inv_std)
    parts = shares(gamma, inv_std, gbeta, ggamma, gamma.size / x.size)
    channels.combine(x_view, gy_view, mean, *parts, gx_view)
    return rounded(gx, x.dtype), None, ggamma.astype("f"), gbeta.astype("f")


def statistics(x: np.ndarray, gamma: np.ndarray, eps: float) -> Arrays:
    """Returns mean, variance and one over the deviation, of the parameters' shape.

    Args:
        x: The input, as (before, C, behind).
        gamma: A parameter.
        eps: Constant added to the variance.
    """
    mean, var = (a.astype("f").reshape(gamma.shape) for a in channels.moments(x))
    return mean, var, np.reciprocal(np.sqrt(var + np.float32(eps)))


def move(
    running_mean: np.ndarray | None,
    running_var: np.ndarray | None,
    mean: np.ndarray,
    var: np.ndarray,
    decay: float,
    n: int,
) -> None:
    """Moves running averages, if there are any, by the statistics of ``n`` numbers."""
    if running_mean is not None:
        adjust = n / max(n - 1.0, 1.0)
        running_mean *= decay
        running_mean += (1 - decay) * mean
        running_var *= decay
        running_var += (1 - decay) * adjust * var


def sums(products: Arrays, mean: np.ndarray, inv_std: np.ndarray) -> Arrays:
    """Returns the gradients of beta and gamma, in float64.

    Args:
        products: The sums of ``gy`` and ``gy * (x - mean)``.
        mean: Mean of each channel, in the parameters' shape.
        inv_std: One over each channel's deviation, in the parameters' shape.
    """
    gbeta, ggamma = products
    return gbeta.reshape(mean.shape), ggamma.reshape(mean.shape) * inv_std


def shares(
    gamma: np.ndarray,
    inv_std: np.ndarray,
    gbeta: np.ndarray,
    ggamma: np.ndarray,
    share: float,
) -> Arrays:
    """Returns scale, slope and shift for the gradient of ``x``.

    The gradient is ``gy * scale + (x - mean) * slope + shift``.

    Args:
        gamma: The parameter.
        inv_std: One over each channel's deviation, in the shape of ``gamma``.
        gbeta: Gradient of beta, as :func:`sums` returns it.
        ggamma: Gradient of gamma, as :func:`sums` returns it.
        share: One by how many numbers a channel has.
    """
    scale = gamma * inv_std
    return scale, scale * inv_std * ggamma * -share, scale * gbeta * -share


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
    found = channels.products(x_view, gy_view, mean)
    gbeta, ggamma = (a.astype("f") for a in sums(found, mean, function.inv_std))
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
