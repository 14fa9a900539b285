"""Numbers of few bits: whole numbers, a scale, and what stands for zero.

::

    real      low ....... 0 ............ high
                  |   |   |   |   |   |
    whole         0   1   z             2^bits - 1      real = scale (whole - z)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import chainer
import numpy as np

#: An array of NumPy or CuPy.
Array = Any


class Affine(NamedTuple):
    """A way to write real numbers as whole ones.

    Attributes:
        scale: The distance of two neighbours, float32; broadcast over the array.
        zero: The whole number that stands for 0, likewise.
        lowest: The least whole number.
        highest: The greatest one.
    """

    scale: Array
    zero: Array
    lowest: int
    highest: int

    @classmethod
    def of_range(cls, low: Array, high: Array, bits: int, symmetric: bool) -> Affine:
        """Returns the finest that can write all of a range, with zero in it.

        Args:
            low: The least real number, a float or an array of them.
            high: The greatest.
            bits: Of a whole number.
            symmetric: Whether the range is to reach as far to both sides of zero.
        """
        xp = chainer.backend.get_array_module(low)
        low = xp.minimum(xp.asarray(low, np.float32), 0)
        high = xp.maximum(xp.asarray(high, np.float32), 0)
        if symmetric:
            highest = 2 ** (bits - 1) - 1
            scale = _positive(xp.maximum(-low, high) / np.float32(highest), xp)
            return cls(scale, xp.zeros_like(scale), -highest, highest)
        highest = 2**bits - 1
        scale = _positive((high - low) / np.float32(highest), xp)
        return cls(scale, xp.floor(-low / scale + np.float32(0.5)), 0, highest)

    @classmethod
    def of_weight(
        cls,
        weight: Array,
        bits: int,
        symmetric: bool,
        per_channel: bool,
        axis: int = 0,
    ) -> Affine:
        """Returns the finest that can write a weight.

        Args:
            weight: Of any shape.
            bits: Of a whole number.
            symmetric: As of :meth:`of_range`.
            per_channel: Whether each channel has a scale of its own.
            axis: That of the channels.
        """
        axes = tuple(i for i in range(weight.ndim) if not per_channel or i != axis)
        low = weight.min(axis=axes, keepdims=True)
        high = weight.max(axis=axes, keepdims=True)
        return cls.of_range(low, high, bits, symmetric)

    def whole(self, real: Array) -> Array:
        """Returns the nearest whole numbers in range, as float32."""
        return self.unbounded(real).clip(self.lowest, self.highest)

    def unbounded(self, real: Array) -> Array:
        """Returns the nearest whole numbers, also those that have too many bits.

        Halves go up, as a plain sum and floor do in every library.
        """
        xp = chainer.backend.get_array_module(real)
        real = real.astype(np.float32, copy=False)
        # What is far beyond a narrow range is infinite, and clipped.
        with np.errstate(over="ignore"):
            return xp.floor(real / self.scale + np.float32(0.5)) + self.zero

    def real(self, whole: Array) -> Array:
        """Returns what whole numbers stand for, float32."""
        return (whole.astype(np.float32, copy=False) - self.zero) * self.scale

    @property
    def dtype(self) -> np.dtype:
        """The dtype that holds a whole number."""
        return np.dtype(np.int8 if self.lowest < 0 else np.uint8)


def _positive(scale: Array, xp: Any) -> Array:
    """Returns scales, 1 where all numbers are zero, or too small to divide by."""
    is_usable = scale >= np.finfo(np.float32).tiny
    return xp.where(is_usable, scale, np.float32(1)).astype(np.float32)
