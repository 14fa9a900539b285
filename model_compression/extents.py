"""The ranges of values in a minibatch, found part by part.

A pipeline processes a minibatch in microbatches, and replicas process parts of it. The
records of the parts are merged to the same numbers for any parts.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Union

import numpy as np

#: Number of a float32's bits that :class:`Most` leaves out: values in a bin differ by
#: 0.2 %.
_SHIFT = 14
_N_BINS = 2 ** (32 - _SHIFT)
_ALL_BUT_SIGN = np.int32(0x7FFFFFFF)


class All(NamedTuple):
    """The least and the greatest value."""

    low: float
    high: float

    def joined(self, other: All) -> All:
        """Returns the extent of both parts."""
        # Python's own min() would lose NaN in one of two orders.
        return All(
            float(np.minimum(self.low, other.low)),
            float(np.maximum(self.high, other.high)),
        )

    @property
    def ends(self) -> tuple[float, float]:
        """The range that contains all values."""
        return self.low, self.high


class Most(NamedTuple):
    """Counts of values in many small bins, for a percentile.

    Percentiles of parts do not determine the percentile of all, and keeping all values
    would take their memory. A bin has the numbers whose leading bits, as float32, are
    the same.

    Attributes:
        percentile: Percentage of the values that are at most the upper end; the same
            percentage is at least the lower end.
        reach: The least and the greatest value.
        bins: Numbers of the bins that have values, in ascending order.
        counts: Number of values in each of these bins.
    """

    percentile: float
    reach: All
    bins: np.ndarray
    counts: np.ndarray

    def joined(self, other: Most) -> Most:
        """Returns the extent of both parts."""
        counts = np.zeros(_N_BINS, np.int64)
        for each in (self, other):
            counts[each.bins] += each.counts
        bins = np.flatnonzero(counts)
        reach = self.reach.joined(other.reach)
        return self._replace(reach=reach, bins=bins, counts=counts[bins])

    @property
    def ends(self) -> tuple[float, float]:
        """The range between the percentiles on both sides, as of ``np.percentile``."""
        if math.isnan(self.reach.low):
            return self.reach.ends
        last = int(self.counts.sum()) - 1
        upper = last * self.percentile / 100
        return self._value(last - upper), self._value(upper)

    def _value(self, rank: float) -> float:
        """Returns the value of a rank, interpolated between two values."""
        below = int(rank)
        part, value = rank - below, self._of_rank(below)
        return value + part * (self._of_rank(below + 1) - value) if part else value

    def _of_rank(self, rank: int) -> float:
        behind = np.cumsum(self.counts)
        if rank == 0:
            return self.reach.low
        if rank == behind[-1] - 1:
            return self.reach.high
        place = int(np.searchsorted(behind, rank, side="right"))
        low, high = _edges(self.bins[place])
        # Values of a bin are assumed to be at equal distances.
        n = int(self.counts[place])
        part = (rank - (int(behind[place]) - n) + 0.5) / n
        return min(max(low + (high - low) * part, self.reach.low), self.reach.high)


Extent = Union[All, Most]


def is_finite(extent: Extent) -> bool:
    """Returns whether both ends of a range are finite, so that it can be divided."""
    return all(map(math.isfinite, extent.ends))


def extent_of(array: np.ndarray, percentile: float | None) -> Extent:
    """Returns the range of some values.

    Args:
        array: Array of any shape and floating type, not empty; for a percentile in host
            memory.
        percentile: Percentile of :class:`Most`; ``None`` for all values.

    Example:
        >>> x = np.arange(1000, dtype=np.float32)
        >>> extent_of(x, None).ends
        (0.0, 999.0)
        >>> parts = [extent_of(x[:10], 99.0), extent_of(x[10:], 99.0)]
        >>> low, high = parts[0].joined(parts[1]).ends
        >>> bool(abs(low - 9.99) < 0.02 and abs(high - 989.01) < 2)
        True
    """
    reach = All(float(array.min()), float(array.max()))
    if percentile is None:
        return reach
    bits = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.int32)
    counts = np.bincount(_swapped(bits).astype(np.int64) // 2**_SHIFT + _N_BINS // 2)
    bins = np.flatnonzero(counts)
    return Most(percentile, reach, bins, counts[bins])


def _edges(number: int) -> tuple[float, float]:
    """Returns the least number of a bin, and that of the next bin."""
    keys = (int(number) + np.arange(2) - _N_BINS // 2) * 2**_SHIFT
    low, high = _swapped(keys.astype(np.int32)).view(np.float32).tolist()
    return low, high


def _swapped(bits: np.ndarray) -> np.ndarray:
    """Turns the bits of float32 into whole numbers of the same order, or back."""
    return bits ^ ((bits >> 31) & _ALL_BUT_SIGN)
