"""Numbers of few bits: whole numbers, a scale, and the whole number for zero.

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
    """A mapping between real numbers and whole numbers.

    Attributes:
        scale: Distance of two neighbouring real numbers, float32; broadcast over the
            array.
        zero: Whole number that stands for 0, float32; broadcast over the array.
        lowest: The least whole number.
        highest: The greatest whole number.
    """

    scale: Array
    zero: Array
    lowest: int
    highest: int

    @classmethod
    def of_range(cls, low: Array, high: Array, bits: int, symmetric: bool) -> Affine:
        """Returns the finest mapping that covers a range and zero.

        Args:
            low: The least real number, a float or an array.
            high: The greatest real number, a float or an array.
            bits: Bits of a whole number.
            symmetric: Whether the range has the same length on both sides of zero.
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
        half = np.float32(0.5)
        # Numbers are rounded up at a half. Both ends of a range from -a to a are
        # halves, so -a becomes the lowest number. Where float32 made the step too short
        # for the highest to reach a, the step is made longer.
        n_steps = xp.floor(high / scale + half) - xp.floor(low / scale + half)
        scale = xp.where(n_steps > highest, scale * np.float32(1 + 2**-20), scale)
        return cls(scale, abs(xp.floor(low / scale + half)), 0, highest)

    @classmethod
    def of_weight(
        cls,
        weight: Array,
        bits: int,
        symmetric: bool,
        per_channel: bool,
        axis: int = 0,
    ) -> Affine:
        """Returns the finest mapping that covers a weight.

        Args:
            weight: Weight of any shape.
            bits: Bits of a whole number.
            symmetric: Whether the range has the same length on both sides of zero.
            per_channel: Whether each channel has a scale of its own.
            axis: Axis of the channels.
        """
        axes = tuple(i for i in range(weight.ndim) if not per_channel or i != axis)
        low = weight.min(axis=axes, keepdims=True)
        high = weight.max(axis=axes, keepdims=True)
        return cls.of_range(low, high, bits, symmetric)

    def whole(self, real: Array) -> Array:
        """Returns the nearest whole numbers in range, as float32."""
        return self.unbounded(real).clip(self.lowest, self.highest)

    def unbounded(self, real: Array) -> Array:
        """Returns the nearest whole numbers, even those that need too many bits.

        Halves are rounded up, as by a sum and a floor in every library.
        """
        xp = chainer.backend.get_array_module(real)
        real = real.astype(np.float32, copy=False)
        # Numbers far beyond a narrow range become infinite, and are clipped.
        with np.errstate(over="ignore"):
            return xp.floor(real / self.scale + np.float32(0.5)) + self.zero

    def real(self, whole: Array) -> Array:
        """Returns the real numbers that whole numbers stand for, float32."""
        return (whole.astype(np.float32, copy=False) - self.zero) * self.scale

    @property
    def dtype(self) -> np.dtype:
        """The dtype that holds a whole number."""
        return np.dtype(np.int8 if self.lowest < 0 else np.uint8)


def _positive(scale: Array, xp: Any) -> Array:
    """Returns scales, 1 where all numbers are zero, or too small to divide by."""
    is_usable = scale >= np.finfo(np.float32).tiny
    return xp.where(is_usable, scale, np.float32(1)).astype(np.float32)
