"""Dropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chainer_kernels import global_random, threads
from chainer_kernels.half_precision import are_float16, in_float32, rounded
from chainer_kernels.layouts import are_float32, empty_like, flat
from chainer_kernels.loops import activations, mersenne_twister

Arrays = tuple[np.ndarray, ...]


def dropout(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Dropout.forward_cpu``, and draws what it draws."""
    (x,) = inputs
    if not ((are_float32(x) or are_float16(x)) and x.ndim):
        return NotImplemented
    if function.mask is None:
        function.mask = drawn_mask(x, function.dropout_ratio)
    return _multiplied(x, function.mask)


def dropout_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``DropoutGrad.forward``."""
    return _multiplied(inputs[0], function.mask)


def drawn_mask(x: np.ndarray, ratio: float) -> np.ndarray:
    """Draws the mask of a dropout, in C order, for the memory order of ``x``."""
    scale = x.dtype.type(1.0 / (1 - ratio))
    drawn = global_random.pairs(x.size) if x.dtype.itemsize <= 4 else None
    if drawn is None:
        factors = scale * (np.random.rand(*x.shape) >= ratio)
    else:
        factors = np.empty(x.shape, "f")
        line = factors.reshape(-1)
        # Both sides of "rand >= ratio" times 2^53, which makes integers of the left.
        threshold = np.uint64(math.ceil(ratio * 2**53))
        for part, pairs in drawn:
            loop = mersenne_twister.dropout_mask
            loop(pairs, line[part], threshold, np.float32(scale))
        factors = rounded(factors, x.dtype)
    if x.flags.c_contiguous:
        return factors
    mask = empty_like(x)
    mask[...] = factors
    return mask


def _multiplied(x: np.ndarray, mask: Any) -> Arrays:
    arrays = in_float32([mask, x])
    if not (are_float32(*arrays) and x.shape == mask.shape):
        return NotImplemented
    y = empty_like(arrays[0])
    threads.run_slices(activations.multiply, flat([*arrays, y]))
    return (rounded(y, x.dtype),)
