"""A histogram of exponents, beside the range of float16.

::

    2^-24 ........ 2^-14 ........................ 2^15
       subnormal               normal              |  overflow
    |  fewer and fewer bits    11 bits             65504
"""

from __future__ import annotations

import math
from typing import Any

import chainer
import numpy as np

Array = Any

# The exponents of all normal float32 numbers; smaller ones are counted with the
# smallest.
_LOWEST, _HIGHEST = -126, 127
_SMALLEST_SUBNORMAL, _SMALLEST_NORMAL = -24, -14
#: The exponent of the largest numbers of float16.
LARGEST = 15


class ExponentHistogram:
    """Counts numbers by the exponents of their magnitudes.

    Attributes:
        n_zeros (int): Number of zeros.
        n_not_finite (int): Number of infinities and NaNs.
        counts (numpy.ndarray): Numbers that have the exponents -126, -125, ... 127,
            those between 2**e and 2**(e + 1).

    Example:
        >>> histogram = ExponentHistogram()
        >>> histogram.add(np.array([0, 2**-20, 0.5, 0.75], np.float32))
        >>> [histogram.shares(scale)['below_normal'] for scale in (1, 64)]
        [0.25, 0.0]
    """

    def __init__(self) -> None:
        self.n_zeros = 0
        self.n_not_finite = 0
        self.counts = np.zeros(_HIGHEST - _LOWEST + 1, dtype=np.int64)

    def add(self, gradient: Array, loss_scale: float = 1.0) -> None:
        """Counts an array.

        Args:
            gradient (array): NumPy or CuPy array of floating-point numbers.
            loss_scale (float): Factor by which the array is divided first.
        """
        device = chainer.backend.get_device_from_array(gradient)
        xp = device.xp
        with chainer.using_device(device):
            # In float64 a quotient does not become zero.
            magnitudes = xp.abs(gradient.astype(np.float64)).ravel() / loss_scale
            finite = magnitudes[xp.isfinite(magnitudes)]
            numbers = finite[finite > 0]
            # CuPy cannot count nothing.
            if numbers.size:
                exponents = xp.clip(xp.frexp(numbers)[1] - 1, _LOWEST, _HIGHEST)
                counts = xp.bincount(exponents - _LOWEST, minlength=self.counts.size)
                self.counts += chainer.get_device("@numpy").send(counts)
        self.n_zeros += int(finite.size - numbers.size)
        self.n_not_finite += int(magnitudes.size - finite.size)

    def merge(self, other: ExponentHistogram) -> None:
        """Adds the counts of another histogram."""
        self.n_zeros += other.n_zeros
        self.n_not_finite += other.n_not_finite
        self.counts += other.counts

    @property
    def n(self) -> int:
        """Number of counted numbers."""
        return int(self.counts.sum()) + self.n_zeros + self.n_not_finite

    @property
    def highest(self) -> int | None:
        """The largest exponent; ``None`` if there is none."""
        occupied = np.flatnonzero(self.counts)
        return int(occupied[-1]) + _LOWEST if occupied.size else None

    def shares(self, scale: float = 1.0) -> dict[str, float]:
        """Returns the shares of numbers that float16 changes when they are multiplied.

        Args:
            scale (float): Factor of the numbers. Other factors than powers of two count
                as the nearest one, because a histogram has exponents only.

        Returns:
            dict: Shares of all numbers: ``'zero'``; ``'below_subnormal'``, less than
            2**-25 but not zero; ``'below_normal'``, less than 2**-14 but not zero;
            ``'overflow'``, 2**16 or more, or not finite. Numbers below subnormal are
            rounded to zero, numbers below normal lose bits.
        """
        exponents = _scaled_exponents(scale)
        n = max(1, self.n)

        def share(where: np.ndarray, more: int = 0) -> float:
            return (int(self.counts[where].sum()) + more) / n

        return {
            "zero": self.n_zeros / n,
            # From half the smallest on, numbers are rounded up to it.
            "below_subnormal": share(exponents < _SMALLEST_SUBNORMAL - 1),
            "below_normal": share(exponents < _SMALLEST_NORMAL),
            "overflow": share(exponents > LARGEST, self.n_not_finite),
        }

    def as_dict(self, scale: float) -> dict[str, Any]:
        """Returns all counts and shares, for JSON."""
        return {
            "n": self.n,
            "before": self.shares(),
            "after": self.shares(scale),
            "exponents": {
                str(i + _LOWEST): int(self.counts[i])
                for i in np.flatnonzero(self.counts)
            },
        }

    def draw(self, ax: Any, scale: float) -> None:
        """Draws the shares of the exponents, with the range of float16.

        Args:
            ax (matplotlib.axes.Axes): Axes to draw in.
            scale (float): The loss scale to show the effect of, as for :meth:`shares`.
        """
        exponents = _scaled_exponents(scale)
        ax.axvspan(_SMALLEST_NORMAL, LARGEST + 1, color="tab:green", alpha=0.15)
        ax.axvspan(
            _SMALLEST_SUBNORMAL, _SMALLEST_NORMAL, color="tab:orange", alpha=0.15
        )
        share = self.counts / max(1, self.n)
        ax.bar(exponents, share, width=1.0, align="edge", color="tab:blue")
        shares = self.shares(scale)
        text = "\n".join(
            f"{name.replace('_', ' ')} {value:.1%}" for name, value in shares.items()
        )
        ax.text(0.02, 0.97, text, transform=ax.transAxes, va="top", fontsize=8)
        ax.set_xlim(-60, 20)
        ax.set_xlabel("exponent; float16 normal green, subnormal orange")
        ax.set_ylabel("share of all")


def _scaled_exponents(scale: float) -> np.ndarray:
    """Returns the exponents that the counted numbers have when they are multiplied."""
    return np.arange(_LOWEST, _HIGHEST + 1) + round(math.log2(scale))
