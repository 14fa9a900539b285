"""Layer normalization."""

from __future__ import annotations

from typing import Any

import chainer
import numpy as np

from chainer_kernels import threads
from chainer_kernels.functions.channels import row_blocks
from chainer_kernels.half_precision import (
    are_singles_or_halves,
    in_float32,
    rounded,
)
from chainer_kernels.loops import normalization as loops

Arrays = tuple[np.ndarray, ...]


def forward(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``LayerNormalization.forward``."""
    if not (are_singles_or_halves(*inputs) and inputs[0].size):
        return NotImplemented
    x, gamma, beta = (np.ascontiguousarray(a) for a in in_float32(inputs))
    if gamma.size != x.shape[1]:
        return NotImplemented
    function.retain_inputs((0, 1))
    y = np.empty_like(x)
    means, inv_stds = np.empty((2, len(x)), "f")
    eps = np.float32(function.eps)
    threads.run_slices(loops.normalize_rows, [x, y, means, inv_stds], gamma, beta, eps)
    function.means_and_inv_stds = means, inv_stds
    return (rounded(y, inputs[0].dtype),)


def backward(function: Any, indexes: Any, grad_outputs: Any) -> Any:
    """Stands for ``LayerNormalization.backward``, unless its own graph is wanted."""
    found = getattr(function, "means_and_inv_stds", None)
    if chainer.config.enable_backprop or found is None:
        return NotImplemented
    inputs = *function.get_retained_inputs(), *grad_outputs
    if not are_singles_or_halves(*[variable.array for variable in inputs]):
        return NotImplemented
    return LayerNormalizationGrad(*found).apply(inputs)


class LayerNormalizationGrad(chainer.FunctionNode):
    """The gradients of layer normalization, which are not differentiated.

    Args:
        means: Means of the rows.
        inv_stds: One over the standard deviations of the rows.
    """

    def __init__(self, means: np.ndarray, inv_stds: np.ndarray) -> None:
        self.means = means
        self.inv_stds = inv_stds

    def forward(self, inputs: Arrays) -> Arrays:
        """Returns the gradients of x, gamma and beta for x, gamma and gy."""
        dtype = inputs[0].dtype
        x, gamma, gy = (np.ascontiguousarray(a) for a in in_float32(inputs))
        starts, _ = row_blocks(len(x), 1, x.shape[1])
        gx = np.empty_like(x)
        n_blocks = len(starts) - 1
        sums = np.empty((2, n_blocks, x.shape[1]), "f")
        threads.run_ranges(
            loops.normalize_rows_grad,
            n_blocks,
            *(x, gy, self.means, self.inv_stds, gamma, starts, gx, *sums),
            size=x.size // n_blocks,
        )
        ggamma, gbeta = sums.sum(1, dtype="d").astype("f")
        return rounded(gx, dtype), rounded(ggamma, dtype), rounded(gbeta, dtype)
