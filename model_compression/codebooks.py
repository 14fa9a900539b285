"""Weights that have few values, and the hook of an optimizer that keeps them few."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import chainer
import numpy as np
from scipy.cluster.vq import kmeans2

from model_compression.hooks import HookOfParameters
from model_compression.shrinking import Assignment, Left, what_stays

_ROUNDS = 20
#: Code of an element that is zero; codes of the other values begin after it.
_ZERO = 0


def clusters(weight: np.ndarray, bits: int) -> np.ndarray:
    """Returns for each element the code of the nearest of a few values.

    Zero is a value of its own, which k-means does not move: pruned elements, and a row
    of zeros, must not join the other values. The other values begin at equal distances,
    from the least to the greatest weight, and k-means moves them. See section 3.2 of
    Han, Mao and Dally (2016)::

        weight    -1.0   -0.9   0.0   0.8   1.0
        code        1      1     0     4     4       2 bits: 1 to 4

    Args:
        weight: Weight, in host memory.
        bits: Bits of a code, if zero is not counted.

    Example:
        >>> clusters(np.array([-1.0, -0.9, 0.0, 0.8, 1.0]), 2).tolist()
        [1, 1, 0, 4, 4]
    """
    found = np.full(weight.shape, _ZERO, code_dtype(bits))
    values = weight[weight != 0].astype(np.float64)
    if values.size:
        first = np.linspace(values.min(), values.max(), 2**bits)
        with warnings.catch_warnings():
            # Values without elements stay where they are.
            warnings.simplefilter("ignore")
            _, nearest = kmeans2(
                values[:, None], first[:, None], _ROUNDS, minit="matrix"
            )
        found[weight != 0] = nearest + 1
    return found


def code_dtype(bits: int) -> np.dtype:
    """Returns the dtype that holds the codes of zero and of 2^bits other values.

    Example:
        >>> code_dtype(7).name, code_dtype(8).name
        ('uint8', 'uint16')
    """
    return np.min_scalar_type(2**bits)


def averaged(weight: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Returns a weight in which elements of one code have their mean; zeros stay.

    Elements that have been pruned since the codes were found are zero, and do not count
    in the means.

    Args:
        weight: Weight, in host memory.
        codes: For each element the code of its value; 0 for zero.

    Returns:
        Array of the weight's shape, float32.

    Example:
        >>> averaged(np.array([1.0, 3.0, 0.0, 5.0]), np.array([1, 1, 1, 2])).tolist()
        [2.0, 2.0, 0.0, 5.0]
        >>> averaged(np.array([1.0, 3.0, 0.1, 5.0]), np.array([1, 1, 0, 2])).tolist()
        [2.0, 2.0, 0.0, 5.0]
    """
    found = np.where(_counting(weight, codes), _means(weight, codes)[codes], 0)
    return found.astype(np.float32)


def joined(weight: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Returns codes in which elements that are not zero any more get the nearest code.

    Args:
        weight: Weight, in host memory.
        codes: For each element the code of its value; 0 for zero.

    Example:
        >>> joined(np.array([1.0, 3.0, 2.5, 0.0]), np.array([1, 2, 0, 0])).tolist()
        [1, 2, 2, 0]
    """
    means, known = _means(weight, codes), np.unique(codes[_counting(weight, codes)])
    is_new = (weight != 0) & (codes == _ZERO)
    if not known.size or not is_new.any():
        return codes
    distances = abs(weight[is_new][:, None] - means[known])
    found = codes.copy()
    found[is_new] = known[distances.argmin(axis=1)]
    return found


def _counting(weight: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Returns which elements have one of the values that move."""
    return (weight != 0) & (codes != _ZERO)


def _means(weight: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Returns by code the mean of the elements that have it."""
    counting, size = _counting(weight, codes), int(codes.max(initial=_ZERO)) + 1
    sums = np.bincount(codes[counting], weight[counting].astype(np.float64), size)
    return sums / np.maximum(np.bincount(codes[counting], minlength=size), 1)


class Codebook:
    """The codes of a weight's elements: elements of one code have one value.

    Attributes:
        codes: For each element the code of its value, 0 for zero.
        is_active: Whether elements of one code have one value already.
    """

    def __init__(self, shape: tuple[int, ...], bits: int) -> None:
        self.codes = np.zeros(shape, code_dtype(bits))
        self.is_active = 0

    def begin(self, param: chainer.Parameter, bits: int) -> None:
        """Finds the values of a weight, and the codes of its elements."""
        host = chainer.get_device("@numpy")
        self.codes[...] = clusters(host.send(param.array), bits)
        self.is_active = 1

    def join(self, param: chainer.Parameter) -> None:
        """Finds codes for elements whose pruning was taken back.

        Args:
            param: Parameter with values where elements were zero when the codebook
                began.
        """
        host = chainer.get_device("@numpy")
        self.codes = joined(host.send(param.array), self.codes)

    def average(self, rule: Any, param: chainer.Parameter) -> None:
        """Sets the elements of each code to their mean, and leaves zeros."""
        if not self.is_active:
            return
        arrays = [param.array]
        master = getattr(rule, "_fp32_param", None)
        if master is not None and master.array is not None:
            arrays = [master.array, param.array]
        weight = chainer.get_device("@numpy").send(arrays[0])
        found = averaged(weight, self.codes)
        for array in arrays:
            with chainer.using_device(param.device):
                array[...] = param.device.send(found)

    def serialize(self, serializer: Any) -> None:
        """Reads or writes the codes."""
        self.codes = serializer("codes", self.codes)
        self.is_active = int(serializer("is_active", self.is_active))


class Codebooks(HookOfParameters):
    """The hook of an optimizer that keeps the values of weights few.

    The update moves each element by its own gradient. The mean of the elements of one
    code then moves by their mean gradient.
    """

    name = "Codebooks"

    def __init__(self) -> None:
        super().__init__()
        self._selected: dict[str, int] = {}
        self._books: dict[str, Codebook] = {}

    def select(self, bits: Mapping[str, int]) -> None:
        """Selects weights that may have a codebook, and the bits of each, by path."""
        self._selected = dict(bits)

    @property
    def paths(self) -> set[str]:
        """The paths of the parameters that the hook may change."""
        return {*self._selected}

    def state_of(self, path: str, param: chainer.Parameter) -> Codebook | None:
        """Returns the codebook of a weight; ``None`` if it may have any values."""
        if path not in self._selected:
            return None
        book = self._books.get(path)
        # For a parameter that a snapshot has resized, the snapshot has other codes.
        if book is None or book.codes.shape != param.shape:
            self._books[path] = Codebook(param.shape, self._selected[path])
        return self._books[path]

    def fit(self, shapes: Mapping[str, Sequence[int]]) -> Callable[[], None]:
        """Prepares for a snapshot, which may have other codes.

        Args:
            shapes: Shapes that parameters have in the snapshot, by path.

        Returns:
            A function that restores the codebooks if the snapshot cannot be read.
        """
        books = dict(self._books)
        return functools.partial(setattr, self, "_books", books)

    def taking_away(self, left: Mapping[str, Sequence[Left]]) -> list[Assignment]:
        """Makes the codes of the remaining parts of parameters; changes nothing yet.

        Args:
            left: Remaining parts of each parameter by path, which may be on another
                rank.

        Returns:
            The assignments that replace the codes.
        """
        found = []
        for path in left.keys() & self._books.keys():
            book = copy.copy(self._books[path])
            book.codes = what_stays(book.codes, left[path])
            found.append(functools.partial(self._books.__setitem__, path, book))
        return found

    def __call__(self, rule: Any, param: chainer.Parameter) -> None:
        """Averages the values of a parameter after its update."""
        path = self.path_of(param)
        book = None if path is None else self.state_of(path, param)
        if book is not None:
            book.average(rule, param)
