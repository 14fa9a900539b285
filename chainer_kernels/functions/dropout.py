"""Dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from chainer_kernels import threads
from chainer_kernels.layouts import are_float32, empty_like, flat
from chainer_kernels.loops import activations as loops

Arrays = tuple[np.ndarray, ...]


def dropout(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Dropout.forward_cpu``, and draws what it draws."""
    (x,) = inputs
    if not (are_float32(x) and x.ndim):
        return NotImplemented
    if function.mask is not None:
        return _multiplied(x, function.mask)
    y, mask = empty_like(x), empty_like(x)
    draws = np.random.rand(*x.shape)
    ratio = function.dropout_ratio
    # The draws are in C order. The others are put in the memory order of x.
    threads.run_slices(
        loops.dropout,
        flat([x, draws, mask, y]),
        float(ratio),
        np.float32(1.0 / (1 - ratio)),
    )
    function.mask = mask
    return (y,)


def dropout_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``DropoutGrad.forward``."""
    return _multiplied(inputs[0], function.mask)


def _multiplied(x: np.ndarray, mask: Any) -> Arrays:
    if not (are_float32(x, mask) and x.shape == mask.shape):
        return NotImplemented
    y = empty_like(mask)
    threads.run_slices(loops.multiply, flat([mask, x, y]))
    return (y,)
