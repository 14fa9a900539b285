"""Weighted means of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: For each name the sum of weighted values, and the sum of the weights.
Sums = dict[str, tuple[float, float]]


def weighted_mean(values: Sequence[Any], weights: Sequence[Any]) -> float:
    """Returns a mean weighted by shares of the total; equal bits on every rank.

    A value with the weight 0 is left out, because a mean over nothing may be NaN. If
    all weights are 0, the result is the plain mean.

    Args:
        values: Values, such as the loss of each microbatch.
        weights: Weight of each value, such as its number of samples.

    Example:
        >>> weighted_mean([1.0, 4.0, float('nan')], [2, 1, 0])
        2.0
        >>> weighted_mean([1.0, 4.0], [0, 0])
        2.5
    """
    total = sum(weights)
    if not total:
        return float(sum(values) / max(1, len(values)))
    return float(sum([n / total * y for y, n in zip(values, weights) if n]))


class RunningMeans:
    """Weighted means by name, of values that come one after another.

    Attributes:
        sums: The sum of the weighted values, and the sum of the weights, by name.

    Example:
        >>> means = RunningMeans()
        >>> means.add('loss', 2.0, 3)
        >>> means.add('loss', 6.0, 1)
        >>> means.add_sums({'loss': (4.0, 4)})
        >>> means.result()
        {'loss': 2.0}
    """

    def __init__(self) -> None:
        self.sums: Sums = {}

    def add(self, name: str, value: float, weight: float) -> None:
        """Adds a value, which may be NaN if its weight is 0."""
        self._add(name, weight * value if weight else 0.0, weight)

    def add_sums(self, sums: Mapping[str, tuple[float, float]]) -> None:
        """Adds the :attr:`sums` of another object."""
        for name, (total, weight) in sums.items():
            self._add(name, total, weight)

    def result(self, of_nothing: Mapping[str, float] | None = None) -> dict[str, float]:
        """Returns the means by name.

        Args:
            of_nothing: The mean for names whose weights are all 0; 0 by default.
        """
        of_nothing = of_nothing or {}
        return {
            name: total / weight if weight else of_nothing.get(name, total)
            for name, (total, weight) in self.sums.items()
        }

    def _add(self, name: str, more: float, weight: float) -> None:
        total, before = self.sums.get(name, (0.0, 0))
        self.sums[name] = total + more, before + weight
