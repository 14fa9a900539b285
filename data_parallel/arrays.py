"""The arrays of an exchange: what they are, and where their numbers are meanwhile."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from data_parallel.settings import is_integer


class Spec(NamedTuple):
    """One array of an exchange.

    Attributes:
        name: Of the parameter, or the number of the array.
        shape: Its shape.
        dtype: The character of its dtype, of float16, float32 or float64.
        is_exempt: Whether it keeps float32 on the wire.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_exempt: bool

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        exempt = ", exempt" if self.is_exempt else ""
        return f"array {self.name} of {self.shape} and {np.dtype(self.dtype)}{exempt}"


def specs_of(arrays: Sequence[Any], exempt: Collection[int] | None) -> tuple[Spec, ...]:
    """Returns what arrays are.

    Args:
        arrays: To be exchanged in place.
        exempt: The positions of those that keep float32 on the wire.

    Raises:
        TypeError: If one is no NumPy array of floating-point numbers.
        ValueError: If one cannot be written, or two share memory; or ``exempt`` has
            positions that are none.
    """
    exempt = list(() if exempt is None else exempt)
    for position in exempt:
        if not (is_integer(position) and 0 <= position < len(arrays)):
            raise ValueError(
                f"exempt has {position}: it must have positions of {len(arrays)} arrays"
            )
    memory = _Memory()
    for i, array in enumerate(arrays):
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"array {i} must be a NumPy array, not {type(array).__name__}"
            )
        if array.dtype.char not in "efd":
            raise TypeError(
                f"array {i} must be float16, float32 or float64, not {array.dtype}"
            )
        if not array.flags.writeable:
            raise ValueError(f"array {i} cannot be written: give a copy of it")
        if not memory.takes(array):
            raise ValueError(
                f"array {i} shares memory with another, or lies between its numbers:"
                f" give copies"
            )
    exempt = set(exempt)
    return tuple(
        Spec(str(i), array.shape, array.dtype.char, i in exempt)
        for i, array in enumerate(arrays)
    )


class Arrays:
    """The numbers of arrays while they are exchanged.

    Args:
        specs: Of the arrays.

    Attributes:
        specs: As given.
        flat: Contiguous float32 numbers in one dimension, by array; ``None`` before
            :meth:`put`. Of most arrays it is their own memory.
        are_present: Whether this rank has the array.
    """

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.specs = specs
        self.flat: list[Any] = [None] * len(specs)
        self.are_present = [False] * len(specs)
        self._given: list[Any] = [None] * len(specs)
        self._memory = _Memory()

    def put(self, i: int, array: np.ndarray | None) -> None:
        """Takes an array; zeros stand for one that this rank has not.

        Raises:
            ValueError: If it is another one than was said, or is there already.
        """
        spec = self.specs[i]
        if self.flat[i] is not None:
            raise ValueError(f"array {spec.name} has been put already")
        if array is None:
            self.flat[i] = np.zeros(spec.size, np.float32)
            return
        if array.shape != spec.shape or array.dtype.char != spec.dtype:
            raise ValueError(f"{spec} was to be put, not {array.shape} {array.dtype}")
        self._given[i], self.are_present[i] = array, True
        if self._is_usable(array):
            # As an array of the base class: a matrix has two dimensions in any case.
            self.flat[i] = np.asarray(array).reshape(-1)
        else:
            # What is too large for float32 is infinite.
            with np.errstate(over="ignore"):
                self.flat[i] = np.array(array, np.float32, order="C").reshape(-1)

    def result(self, i: int) -> np.ndarray:
        """Returns the array with its new numbers, the same one if it can be written."""
        spec, array, flat = self.specs[i], self._given[i], self.flat[i]
        if array is not None and np.may_share_memory(array, flat):
            return array
        with np.errstate(over="ignore"):
            if self._is_free(array):
                array[...] = flat.reshape(spec.shape)
                return array
            return flat.reshape(spec.shape).astype(spec.dtype, copy=False)

    def _is_usable(self, array: np.ndarray) -> bool:
        """Returns whether the numbers are as they must be, and may be written."""
        is_plain = array.dtype == np.float32 and array.flags.c_contiguous
        return is_plain and self._is_free(array)

    def _is_free(self, array: np.ndarray | None) -> bool:
        """Returns whether an array may be written, and is not used otherwise."""
        return array is not None and array.flags.writeable and self._memory.takes(array)


class _Memory:
    """Which memory is in use."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def takes(self, array: np.ndarray) -> bool:
        """Returns whether nobody uses the memory of an array, and uses it."""
        if not array.size:
            return True
        low = high = array.ctypes.data
        if array.flags.c_contiguous:
            high += array.nbytes
        else:
            for n, stride in zip(array.shape, array.strides):
                low += min(0, (n - 1) * stride)
                high += max(0, (n - 1) * stride)
            high += array.itemsize
        place = bisect(self._starts, low)
        if place and self._stops[place - 1] > low:
            return False
        if place < len(self._starts) and self._starts[place] < high:
            return False
        self._starts.insert(place, low)
        self._stops.insert(place, high)
        return True
