"""Group normalization: statistics of groups of channels, for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np

from chainer_kernels.functions import channels
from chainer_kernels.half_precision import (
    are_singles_or_halves,
    in_float32,
    rounded,
)
from chainer_kernels.layouts import around, empty_like, is_channels_last

Arrays = tuple[np.ndarray, ...]


def forward(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``GroupNormalization.forward``."""
    x, gamma, beta = inputs
    dtypes = x.dtype, gamma.dtype
    is_covered = _are_covered([x], [gamma, beta]) and x.size
    if not is_covered or x.shape[1] % function.groups:
        return NotImplemented
    function.retain_inputs((0, 1))
    (x,), (gamma, beta) = in_float32([x]), in_float32([gamma, beta])
    x = _by_sample(x)
    y = empty_like(x)
    x_view, y_view = around([x, y], [1])
    n, n_channels = x.shape[:2]
    if x.flags.c_contiguous:
        # The channels of a group lie one after the other.
        mean, var = channels.moments(x.reshape(n, function.groups, -1), n)
    else:
        mean, var = channels.moments(x_view, n)
        mean, var = (_grouped(a, function.groups) for a in (mean, var))
        var = var.mean(2) + mean.var(2)
        mean = mean.mean(2)
    inv_std = 1 / np.sqrt(var + function.eps)
    statistics = [a.reshape(-1).astype("f") for a in (mean, inv_std)]
    function.float32_statistics = statistics
    # Chainer's backward expects them in the dtype of the parameters.
    function.mean, function.inv_std = (rounded(a, dtypes[1]) for a in statistics)
    mean, inv_std = _of_channels(function, n_channels)
    shift = np.broadcast_to(beta, mean.shape)
    channels.scale(x_view, mean, inv_std * gamma, shift, y_view)
    return (rounded(y, dtypes[0]),)


def backward(function: Any, indexes: Any, grad_outputs: Any) -> Any:
    """Stands for ``GroupNormalization.backward``, unless its own graph is wanted."""
    inputs = *function.get_retained_inputs(), *grad_outputs
    arrays = [variable.array for variable in inputs]
    x, gamma, gy = arrays
    if chainer.config.enable_backprop or not _are_covered([x, gy], [gamma]):
        return NotImplemented
    statistics = _of_channels(function, x.shape[1])
    return GroupNormalizationGrad(function.groups, *statistics).apply(inputs)


class GroupNormalizationGrad(chainer.FunctionNode):
    """The gradients of group normalization, which are not differentiated.

    Args:
        groups: The number of groups.
        mean: The mean of the group, for each sample and channel.
        inv_std: One over the group's standard deviation, for each sample and channel.
    """

    def __init__(self, groups: int, mean: np.ndarray, inv_std: np.ndarray) -> None:
        self.groups = groups
        self.mean = mean
        self.inv_std = inv_std

    def forward(self, inputs: Arrays) -> Arrays:
        """Returns the gradients of x, gamma and beta for x, gamma and gy."""
        x, gamma, gy = inputs
        dtypes = x.dtype, gamma.dtype
        (x, gy), (gamma,) = in_float32([x, gy]), in_float32([gamma])
        mean, inv_std = self.mean, self.inv_std
        x = _by_sample(x)
        gx = empty_like(x)
        views = around([x, gy, gx], [1])
        gbeta, ggamma = channels.products(*views[:2], mean)
        ggamma *= inv_std
        share = -self.groups * len(x) / x.size
        shift, slope = (
            self._sums(gamma * a) * inv_std * share for a in (gbeta, ggamma)
        )
        x_view, gy_view, gx_view = views
        scale = inv_std * gamma
        channels.combine(x_view, gy_view, mean, scale, slope * inv_std, shift, gx_view)
        ggamma, gbeta = (
            rounded(a.sum(0).astype("f"), dtypes[1]) for a in (ggamma, gbeta)
        )
        return rounded(gx, dtypes[0]), ggamma, gbeta

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Returns for each sample and channel the sum over its group."""
        sums = _grouped(values, self.groups).sum(2)
        return np.repeat(sums, values.shape[1] // self.groups, axis=1)


def _are_covered(
    activations: Sequence[np.ndarray], parameters: Sequence[np.ndarray]
) -> bool:
    """Returns whether arrays are float32 or float16, and parameters no narrower."""
    return (
        are_singles_or_halves(*activations)
        and are_singles_or_halves(*parameters)
        and np.can_cast(activations[0].dtype, parameters[0].dtype)
    )


def _by_sample(x: np.ndarray) -> np.ndarray:
    """Returns an array in which samples lie one after the other."""
    return x if is_channels_last(x) else np.ascontiguousarray(x)


def _grouped(values: np.ndarray, groups: int) -> np.ndarray:
    """Returns (samples, C) as (samples, groups, C / groups)."""
    return values.reshape(len(values), groups, -1)


def _of_channels(function: Any, n_channels: int) -> list[np.ndarray]:
    """Returns the means and inverse deviations as (samples, C)."""
    # Without them the forward was Chainer's.
    chainers = function.mean, function.inv_std
    statistics = getattr(function, "float32_statistics", chainers)
    return [
        np.repeat(
            a.astype("f", copy=False).reshape(-1, function.groups),
            n_channels // function.groups,
            axis=1,
        )
        for a in statistics
    ]
