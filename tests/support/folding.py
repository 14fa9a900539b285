"""Layers with batch normalizations as training leaves them, and what they compute."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import chainer
import chainer.links as L
import numpy as np

from tests.support.fusion import one_by_one


@contextlib.contextmanager
def nothing_trains() -> Iterator[None]:
    """Runs a block as a prediction does."""
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        yield


def fill(norm: L.BatchNormalization, seed: int = 0) -> L.BatchNormalization:
    """Gives a normalization averages and parameters as training leaves them."""
    random = np.random.RandomState(seed)
    shape = norm.avg_mean.shape
    norm.avg_mean[...] = random.standard_normal(shape)
    norm.avg_var[...] = random.uniform(0.1, 4, shape)
    for param in norm.params():
        param.array[...] = random.standard_normal(shape)
    return norm


def normalization(n_channels: int, **options: Any) -> L.BatchNormalization:
    """Returns a normalization with averages and parameters."""
    return fill(L.BatchNormalization(n_channels, **options))


def convolution(n_in: int = 3, n_out: int = 8, **options: Any) -> L.Convolution2D:
    """Returns a convolution that keeps the size of images."""
    layer = L.Convolution2D(n_in, n_out, 3, pad=1, **options)
    if layer.b is not None:
        layer.b.array[...] = np.arange(n_out)
    return layer


def unfolded(layers: Sequence[Callable], *inputs: Any) -> np.ndarray:
    """Returns what layers compute one by one."""
    with nothing_trains():
        return one_by_one(layers, *inputs).array


class Functions(chainer.FunctionHook):
    """The labels of the functions that run.

    Args:
        minds_fusion: Whether it wants to see each of them.
    """

    def __init__(self, minds_fusion: bool = False) -> None:
        self.minds_fusion = minds_fusion
        self.labels: list[str] = []

    def forward_preprocess(self, function: Any, in_data: Sequence[Any]) -> None:
        """Is called by every function."""
        self.labels.append(function.label)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    """Asserts that arrays differ by rounding only."""
    # What nearly cancels out is as exact as what it is the sum of.
    atol = 1e-5 * max(np.abs(expected).max(), 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=atol)
