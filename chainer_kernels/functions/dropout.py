"""Dropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chainer_kernels import global_random, threads
from chainer_kernels.layouts import are_float32, empty_like, flat
from chainer_kernels.loops import activations, mersenne_twister

Arrays = tuple[np.ndarray, ...]


def dropout(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Dropout.forward_cpu``, and draws what it draws."""
    (x,) = inputs
    if not (are_float32(x) and x.ndim):
        return NotImplemented
    if function.mask is None:
        function.mask = empty_like(x)
        _draw(function.mask, function.dropout_ratio)
    return _multiplied(x, function.mask)


def dropout_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``DropoutGrad.forward``."""
    return _multiplied(inputs[0], function.mask)


def _draw(mask: np.ndarray, ratio: float) -> None:
    """Draws a mask, in C order whatever its memory order is."""
    scale = np.float32(1.0 / (1 - ratio))
    drawn = global_random.pairs(mask.size)
    if drawn is None:
        mask[...] = scale * (np.random.rand(*mask.shape) >= ratio)
        return
    factors = np.empty(mask.shape, "f") if not mask.flags.c_contiguous else mask
    line = factors.reshape(-1)
    # Both sides of "rand >= ratio" times 2^53, which makes integers of the left ones.
    threshold = np.uint64(math.ceil(ratio * 2**53))
    for part, pairs in drawn:
        mersenne_twister.dropout_mask(pairs, line[part], threshold, scale)
    if factors is not mask:
        mask[...] = factors


def _multiplied(x: np.ndarray, mask: Any) -> Arrays:
    if not (are_float32(x, mask) and x.shape == mask.shape):
        return NotImplemented
    y = empty_like(mask)
    threads.run_slices(activations.multiply, flat([mask, x, y]))
    return (y,)
