"""Measures whether a layer that skips blocks is faster than one that does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import numpy as np

from chainer_kernels.block_rows import LINEAR
from chainer_kernels.functions.block_products import BlockLayer, BlockProduct

#: Timed runs of each way; the fastest counts. Runs before them compile and allocate.
_N_RUNS = 5


class BlockChoice(NamedTuple):
    """The measured milliseconds of a layer's forward and backward.

    Attributes:
        shape: The shape of the inputs.
        ms_dense: Milliseconds of products with all weights.
        ms_blocks: Milliseconds of products that skip blocks.
    """

    shape: tuple[int, ...]
    ms_dense: float
    ms_blocks: float

    @property
    def skips(self) -> bool:
        """Whether products that skip blocks were faster."""
        return self.ms_blocks < self.ms_dense


def measured(layer: BlockLayer, W: np.ndarray, shape: tuple[int, ...]) -> BlockChoice:
    """Times a layer both ways: forward, and the gradients of inputs and weights.

    Args:
        layer: The layer.
        W: Its weights, of the layer's shape.
        shape: The shape of its inputs, (N, I) or (N, C, *sizes).
    """
    x = np.ones(shape, np.float32)
    geometry = layer.geometry

    def dense(x: Any, W: Any) -> Any:
        if geometry is LINEAR:
            return F.linear(x, W)
        return F.convolution_2d(
            x, W, None, geometry.stride, geometry.pad, dilate=geometry.dilation
        )

    def blocks(x: Any, W: Any) -> Any:
        return BlockProduct(layer).apply((x, W))[0]

    ways = dense, blocks
    # Weights of before may be anything.
    with chainer.force_backprop_mode(), np.errstate(all="ignore"):
        for way in ways:
            _seconds(way, x, W)
        runs = [[_seconds(way, x, W) for way in ways] for _ in range(_N_RUNS)]
    return BlockChoice(shape, *(1e3 * min(each) for each in zip(*runs)))


def _seconds(way: Callable, x: np.ndarray, W: np.ndarray) -> float:
    inputs = chainer.Variable(x), chainer.Variable(W)
    start = time.perf_counter()
    y = way(*inputs)
    chainer.grad([y], inputs, [chainer.Variable(np.ones_like(y.array))])
    return time.perf_counter() - start
