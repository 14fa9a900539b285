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
#: The code of an element that is zero; those of the few values begin behind it.
_ZERO = 0


def clusters(weight: np.ndarray, bits: int) -> np.ndarray:
    """Returns for each element the code of the nearest of a few values.

    Zero is a value beside them, which is given and does not move: what was pruned, and
    a row of zeros, must not join the values that are. The others begin at equal
    distances, from the least to the greatest weight, as in section 3.2 of Han, Mao and
    Dally (2016), and k-means moves them::

        weight    -1.0   -0.9   0.0   0.8   1.0
        code        1      1     0     4     4       2 bits: 1 to 4

    Args:
        weight: In host memory.
        bits: How many a code has, if zero is not counted.

    Example:
        >>> clusters(np.array([-1.0, -0.9, 0.0, 0.8, 1.0]), 2).tolist()
        [1, 1, 0, 4, 4]
    """
    found = np.full(weight.shape, _ZERO, code_dtype(bits))
    values = weight[weight != 0].astype(np.float64)
    if values.size:
        first = np.linspace(values.min(), values.max(), 2**bits)
        with warnings.catch_warnings():
            # Values that nothing is near to stay where they are.
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
    """Returns a weight whose elements of one code have their mean; zeros stay.

    Elements that have been pruned since the codes were found are zero, and do not count
    in the means.

    Args:
        weight: In host memory.
        codes: For each element the code of its value; 0 for zero.

    Returns:
        Of the weight's shape, float32.

    Example:
        >>> averaged(np.array([1.0, 3.0, 0.0, 5.0]), np.array([1, 1, 1, 2])).tolist()
        [2.0, 2.0, 0.0, 5.0]
        >>> averaged(np.array([1.0, 3.0, 0.1, 5.0]), np.array([1, 1, 0, 2])).tolist()
        [2.0, 2.0, 0.0, 5.0]
    """
    found = np.where(_counting(weight, codes), _means(weight, codes)[codes], 0)
    return found.astype(np.float32)


def joined(weight: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Returns codes in which elements that are zero no more have the nearest value's.

    Args:
        weight: In host memory.
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
    """The codes of a weight's elements: those of one code have one value.

    Attributes:
        codes: For each element the code of its value, 0 for zero.
        is_active: Whether they have one value already.
    """

    def __init__(self, shape: tuple[int, ...], bits: int) -> None:
        self.codes = np.zeros(shape, code_dtype(bits))
        self.is_active = 0

    def begin(self, param: chainer.Parameter, bits: int) -> None:
        """Finds the values of a weight."""
        host = chainer.get_device("@numpy")
        self.codes[...] = clusters(host.send(param.array), bits)
        self.is_active = 1

    def join(self, param: chainer.Parameter) -> None:
        """Finds a value for elements that pruning has given back.

        Args:
            param: Has values where elements were zero when the codebook began.
        """
        host = chainer.get_device("@numpy")
        self.codes = joined(host.send(param.array), self.codes)

    def average(self, rule: Any, param: chainer.Parameter) -> None:
        """Gives the elements of each value their mean, and leaves zeros."""
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
        # A parameter that a snapshot has resized comes with other codes.
        if book is None or book.codes.shape != param.shape:
            self._books[path] = Codebook(param.shape, self._selected[path])
        return self._books[path]

    def fit(self, shapes: Mapping[str, Sequence[int]]) -> Callable[[], None]:
        """Prepares for a snapshot, which may have other codes.

        Args:
            shapes: By path the shapes that parameters have in the snapshot.

        Returns:
            What sets the codebooks back, if the snapshot cannot be read.
        """
        books = dict(self._books)
        return functools.partial(setattr, self, "_books", books)

    def taking_away(self, left: Mapping[str, Sequence[Left]]) -> list[Assignment]:
        """Makes the codes of what stays of parameters, and changes nothing yet.

        Args:
            left: By path what stays of each, which may be on another rank.

        Returns:
            The assignments that put them in their places.
        """
        found = []
        for path in left.keys() & self._books.keys():
            book = copy.copy(self._books[path])
            book.codes = what_stays(book.codes, left[path])
            found.append(functools.partial(self._books.__setitem__, path, book))
        return found

    def __call__(self, rule: Any, param: chainer.Parameter) -> None:
        """Keeps the values of a parameter that has been updated."""
        path = self.path_of(param)
        book = None if path is None else self.state_of(path, param)
        if book is not None:
            book.average(rule, param)
