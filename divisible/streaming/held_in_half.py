"""Arrays of float32 that wait as bfloat16, in memory or in a file.

::

    put(a)     round a, free a  -->  codes  -->  memory, or a `HeldStore`
    fetch(k)   (ahead of its use)                           |
    take(k)    widen            <--  codes  <---------------'

A number of bfloat16 is the upper half of a float32, with 8 bits of precision: rounded
to the nearest, ties to even, it differs by 2**-8 of its magnitude at most. Infinity
stays infinity, and NaN stays NaN.
"""

from __future__ import annotations

import itertools

import numpy as np

from divisible.streaming.held_store import HeldStore


class HeldInHalf:
    """Holds arrays of float32 as bfloat16, and arrays of bytes as they are.

    Args:
        store (HeldStore or None): Store of the codes; ``None`` for memory.

    Example:
        >>> half = HeldInHalf()
        >>> key = half.put([np.array([1, 1.01, 3.14159], np.float32)])
        >>> half.n_bytes, half.take(key)[0].tolist()
        (6, [1.0, 1.0078125, 3.140625])
    """

    def __init__(self, store: HeldStore | None = None) -> None:
        self._store = store
        self._keys = itertools.count()
        self._codes: dict[int, list[np.ndarray]] = {}
        # For each key whether each of its arrays was rounded.
        self._are_rounded: dict[int, list[bool]] = {}

    @property
    def n_bytes(self) -> int:
        """The bytes in memory, or the size of the file."""
        if self._store is not None:
            return self._store.n_bytes
        return sum(codes.nbytes for each in self._codes.values() for codes in each)

    def put(self, arrays: list[np.ndarray]) -> int:
        """Rounds arrays, and returns a key by which they can be taken again.

        Args:
            arrays: Contiguous arrays with one dimension, of float32 or of bytes. They
                are removed from the list, one after the other, so that each is free
                before the next one is rounded.

        Raises:
            OSError, TimeoutError, RuntimeError: See :meth:`HeldStore.put`.
        """
        are_rounded, held = [], []
        arrays.reverse()
        while arrays:
            array = arrays.pop()
            are_rounded.append(array.dtype == np.float32)
            held.append(_rounding().narrowed(array) if are_rounded[-1] else array)
            del array
        if self._store is None:
            key = next(self._keys)
            self._codes[key] = held
        else:
            key = self._store.put([codes.view(np.uint8) for codes in held])
        self._are_rounded[key] = are_rounded
        return key

    def fetch(self, key: int) -> None:
        """Begins to read the arrays of a key, if they are in a file."""
        if self._store is not None:
            self._store.fetch(key)

    def take(self, key: int) -> list[np.ndarray]:
        """Returns the arrays of a key, widened again, and frees their place.

        Raises:
            OSError, MemoryError, TimeoutError, RuntimeError: See
                :meth:`HeldStore.take`.
        """
        are_rounded = self._are_rounded.pop(key)
        in_memory = self._store is None
        held = self._codes.pop(key) if in_memory else self._store.take(key)
        found = []
        held.reverse()
        for is_rounded in are_rounded:
            codes = held.pop()
            if is_rounded:
                codes = _rounding().rounded(codes.view(np.uint16))
            found.append(codes)
            del codes
        return found

    def clear(self) -> None:
        """Frees all places."""
        self._codes.clear()
        self._are_rounded.clear()
        if self._store is not None:
            self._store.clear()

    def close(self) -> None:
        """Frees all places, and closes the store."""
        self._codes.clear()
        self._are_rounded.clear()
        if self._store is not None:
            self._store.close()


def _rounding():
    # Numba takes a second to load, and most runs do not need it here.
    from chainer_kernels import bfloat16

    return bfloat16
