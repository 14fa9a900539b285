"""The arrays of an exchange: their descriptions, and their numbers meanwhile."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from data_parallel.settings import is_integer

#: The device of NumPy's arrays.
HOST = chainer.get_device("@numpy")


class Spec(NamedTuple):
    """One array of an exchange.

    Attributes:
        name: Name of the parameter, or number of the array.
        shape: Shape of the array.
        dtype: Character of the dtype, which is float16, float32 or float64.
        is_exempt: Whether the array is sent in float32.
        device (chainer.backend.Device): Device of the array. Ranks may differ.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_exempt: bool
    device: Any = HOST

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        exempt = ", exempt" if self.is_exempt else ""
        return f"array {self.name} of {self.shape} and {np.dtype(self.dtype)}{exempt}"


def specs_of(arrays: Sequence[Any], exempt: Collection[int] | None) -> tuple[Spec, ...]:
    """Returns the descriptions of arrays.

    Args:
        arrays: Arrays to be exchanged in place.
        exempt: Positions of the arrays that are sent in float32.

    Raises:
        TypeError: If one is not a NumPy or CuPy array of floating-point numbers.
        ValueError: If one cannot be written to, or two share memory, or ``exempt`` has
            wrong positions.
    """
    exempt = list(() if exempt is None else exempt)
    for position in exempt:
        if not (is_integer(position) and 0 <= position < len(arrays)):
            raise ValueError(
                f"exempt has {position}: it must have positions of {len(arrays)} arrays"
            )
    memory = _Memory()
    for i, array in enumerate(arrays):
        if not isinstance(array, (np.ndarray, chainer.backends.cuda.ndarray)):
            raise TypeError(
                f"array {i} must be a NumPy or CuPy array, not {type(array).__name__}"
            )
        if array.dtype.char not in "efd":
            raise TypeError(
                f"array {i} must be float16, float32 or float64, not {array.dtype}"
            )
        if not _is_writable(array):
            raise ValueError(f"array {i} cannot be written: give a copy of it")
        if not memory.takes(array):
            raise ValueError(
                f"array {i} shares memory with another, or lies between its numbers:"
                f" give copies"
            )
    exempt = set(exempt)
    return tuple(
        Spec(str(i), array.shape, array.dtype.char, i in exempt, device_of(array))
        for i, array in enumerate(arrays)
    )


def device_of(array: Any) -> Any:
    """Returns the device of a NumPy or CuPy array."""
    # Chainer's own function takes microseconds.
    if isinstance(array, np.ndarray):
        return HOST
    return chainer.backend.get_device_from_array(array)


def common_device(specs: Sequence[Spec]) -> Any:
    """Returns the common device of arrays, or the host's if there are no arrays.

    Raises:
        TypeError: If they are on several devices.
    """
    for spec in specs:
        if spec.device != specs[0].device:
            raise TypeError(
                f"array {spec.name} is on {spec.device}, but {specs[0].name} on"
                f" {specs[0].device}: exchange arrays of one device together"
            )
    return specs[0].device if specs else HOST


class Arrays:
    """The numbers of arrays while they are exchanged.

    Args:
        specs: Descriptions of the arrays.
        device (chainer.backend.Device): Device for the numbers meanwhile.

    Attributes:
        specs: Descriptions of the arrays.
        device: Device of the numbers.
        flat: For each array its contiguous float32 numbers in one dimension; ``None``
            before :meth:`put`. Most are views of the arrays' own memory.
        are_present: For each array whether this rank has it.
    """

    def __init__(self, specs: Sequence[Spec], device: Any = HOST) -> None:
        self.specs, self.device = specs, device
        self.flat: list[Any] = [None] * len(specs)
        self.are_present = [False] * len(specs)
        self._given: list[Any] = [None] * len(specs)
        # Whether the flat numbers are a view of the given array.
        self._are_given = [False] * len(specs)
        self._memory = _Memory()

    def put(self, i: int, array: Any) -> None:
        """Adds an array; zeros stand for one that this rank does not have.

        Raises:
            ValueError: If it does not fit its description, or was put before.
        """
        spec, xp = self.specs[i], self.device.xp
        if self.flat[i] is not None:
            raise ValueError(f"array {spec.name} has been put already")
        if array is None:
            self.flat[i] = xp.zeros(spec.size, np.float32)
            return
        if array.shape != spec.shape or array.dtype.char != spec.dtype:
            raise ValueError(f"{spec} was to be put, not {array.shape} {array.dtype}")
        if device_of(array) != spec.device:
            where = device_of(array)
            raise ValueError(f"{spec} was to be put on {spec.device}, not on {where}")
        self._given[i], self.are_present[i] = array, True
        if self._is_usable(array):
            # A view as the base class: a matrix always has two dimensions.
            self.flat[i], self._are_given[i] = xp.asarray(array).reshape(-1), True
        else:
            # Numbers that are too large for float32 become infinite.
            with np.errstate(over="ignore"):
                here = self.device.send(array)
                self.flat[i] = xp.array(here, np.float32, order="C").reshape(-1)

    def result(self, i: int) -> Any:
        """Returns the array with its new numbers, the same one if it can be written."""
        spec, array = self.specs[i], self._given[i]
        if self._are_given[i]:
            return array
        numbers = spec.device.send(self.flat[i]).reshape(spec.shape)
        with np.errstate(over="ignore"):
            if self._is_free(array):
                array[...] = numbers
                return array
            return numbers.astype(spec.dtype, copy=False)

    def _is_usable(self, array: Any) -> bool:
        """Returns whether an array can be used directly, and written to."""
        is_here = isinstance(array, self.device.supported_array_types)
        is_plain = array.dtype == np.float32 and array.flags.c_contiguous
        return is_here and is_plain and self._is_free(array)

    def _is_free(self, array: Any) -> bool:
        """Returns whether an array may be written to, and no other one shares it."""
        return array is not None and _is_writable(array) and self._memory.takes(array)


def _is_writable(array: Any) -> bool:
    """Returns whether each element can be written without another one."""
    if isinstance(array, np.ndarray):
        return array.flags.writeable
    # CuPy does not mark broadcast arrays as read-only.
    return not array.size or all(
        stride or n == 1 for n, stride in zip(array.shape, array.strides)
    )


class _Memory:
    """Ranges of memory that are in use. GPUs and the host share no addresses."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def takes(self, array: Any) -> bool:
        """Reserves the memory of an array, and returns whether it was free."""
        if not array.size:
            return True
        is_here = isinstance(array, np.ndarray)
        low = high = array.ctypes.data if is_here else array.data.ptr
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
