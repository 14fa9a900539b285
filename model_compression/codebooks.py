"""Weights that have few values, and the hook of an optimizer that keeps them few."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import chainer
import numpy as np
from scipy.cluster.vq import kmeans2

from model_compression.hooks import HookOfParameters
from model_compression.shrinking import Left

_ROUNDS = 20


def clusters(weight: np.ndarray, bits: int) -> np.ndarray:
    """Returns for each element which of the few values is nearest; of zeros any.

    The values begin at equal distances, from the least to the greatest weight, as in
    section 3.2 of Han, Mao and Dally (2016), and k-means moves them.

    Args:
        weight: In host memory.
        bits: Of the number of a value.

    Example:
        >>> clusters(np.array([-1.0, -0.9, 0.0, 0.8, 1.0]), 2)[[0, 1, 3, 4]].tolist()
        [0, 0, 3, 3]
    """
    found = np.zeros(weight.shape, np.uint8)
    values = weight[weight != 0].astype(np.float64)
    if values.size:
        first = np.linspace(values.min(), values.max(), 2**bits)
        with warnings.catch_warnings():
            # Values that nothing is near to stay where they are.
            warnings.simplefilter("ignore")
            _, nearest = kmeans2(
                values[:, None], first[:, None], _ROUNDS, minit="matrix"
            )
        found[weight != 0] = nearest
    return found


def averaged(weight: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns a weight whose elements of one number have their mean; zeros stay.

    Args:
        weight: In host memory.
        numbers: For each element the number of its value, below 256.

    Returns:
        Of the weight's shape, float32.

    Example:
        >>> averaged(np.array([1.0, 3.0, 0.0, 5.0]), np.array([0, 0, 0, 1])).tolist()
        [2.0, 2.0, 0.0, 5.0]
    """
    is_any = weight != 0
    numbers_of_any = numbers[is_any]
    sums = np.bincount(numbers_of_any, weight[is_any].astype(np.float64), 256)
    counts = np.bincount(numbers_of_any, minlength=256)
    means = (sums / np.maximum(counts, 1)).astype(np.float32)
    return np.where(is_any, means[numbers], np.float32(0))


class Codebook:
    """Which elements of a weight have one value.

    Attributes:
        numbers: For each element the number of its value, uint8.
        is_active: Whether they have one value already.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.numbers = np.zeros(shape, np.uint8)
        self.is_active = 0

    def begin(self, param: chainer.Parameter, bits: int) -> None:
        """Finds the values of a weight."""
        host = chainer.get_device("@numpy")
        self.numbers[...] = clusters(host.send(param.array), bits)
        self.is_active = 1

    def average(self, rule: Any, param: chainer.Parameter) -> None:
        """Gives the elements of each value their mean, and leaves zeros."""
        if not self.is_active:
            return
        arrays = [param.array]
        master = getattr(rule, "_fp32_param", None)
        if master is not None and master.array is not None:
            arrays = [master.array, param.array]
        weight = chainer.get_device("@numpy").send(arrays[0])
        found = averaged(weight, self.numbers)
        for array in arrays:
            with chainer.using_device(param.device):
                array[...] = param.device.send(found)

    def serialize(self, serializer: Any) -> None:
        """Reads or writes the numbers."""
        self.numbers = serializer("numbers", self.numbers)
        self.is_active = int(serializer("is_active", self.is_active))


class Codebooks(HookOfParameters):
    """The hook of an optimizer that keeps the values of weights few.

    The update moves each element by its own gradient; the mean of those that have one
    value moves by the mean gradient.
    """

    name = "Codebooks"

    def __init__(self) -> None:
        super().__init__()
        self._selected: dict[str, int] = {}
        self._books: dict[str, Codebook] = {}

    def select(self, bits: Mapping[str, int]) -> None:
        """Says which weights may have few values, by path, and the bits of each."""
        self._selected = dict(bits)

    @property
    def paths(self) -> set[str]:
        """The paths of the parameters that it may change."""
        return {*self._selected}

    def state_of(self, path: str, param: chainer.Parameter) -> Codebook | None:
        """Returns the values of a weight; ``None`` if it may have any."""
        if path not in self._selected:
            return None
        book = self._books.get(path)
        # A parameter that a snapshot has resized comes with other numbers.
        if book is None or book.numbers.shape != param.shape:
            self._books[path] = Codebook(param.shape)
        return self._books[path]

    def take_away(self, path: str, left: Left) -> None:
        """Takes elements of a parameter away, which may be on another rank."""
        book = self._books.get(path)
        if book is not None:
            book.numbers = left.of(book.numbers)

    def __call__(self, rule: Any, param: chainer.Parameter) -> None:
        """Keeps the values of a parameter that has been updated."""
        path = self.path_of(param)
        book = None if path is None else self.state_of(path, param)
        if book is not None:
            book.average(rule, param)
