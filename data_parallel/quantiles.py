"""The quantiles of ``'oyama2017'``: computed now and then, and kept in between.

::

    exchange      0         1 .. N-1    N         N+1 .. 2N-1
    renewal       0                     1
    q             computed  kept        computed  kept

The q of an array is the largest of all ranks. Each rank computes one from some elements
of its array. Each rank and each renewal has a random choice of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from chainer_kernels import float8
from data_parallel.arrays import Spec
from data_parallel.settings import Settings

# Least q with a reciprocal, and a quotient by the largest code, in float32.
_LEAST_QUANTILE = float8.LARGEST * 2.0**-126


class Draw(NamedTuple):
    """A random choice of elements, for one quantile of one rank.

    Attributes:
        rank: The rank.
        array: Name of the array.
        renewal: Number of the renewal, from 0 on.
    """

    rank: int
    array: str
    renewal: int

    def elements(self, n: int, settings: Settings) -> slice | np.ndarray:
        """Returns the chosen elements of an array, each once; all if there are few.

        Args:
            n: Number of elements of the array.
            settings: Settings with the seed, and the number of elements to choose.
        """
        if n <= settings.samples:
            return slice(None)
        name = zlib.crc32(self.array.encode())
        # A RandomState would shuffle all elements to choose some.
        random = np.random.default_rng([settings.seed, self.rank, name, self.renewal])
        return random.choice(n, settings.samples, replace=False)


def quantile(ratios: np.ndarray, settings: Settings) -> float:
    """Returns a rank's q: a quantile of the magnitudes of some ratios.

    Args:
        ratios: Ratios, flat. Those that are not finite do not count.
        settings: Settings of the exchange.
    """
    ratios = ratios[np.isfinite(ratios)]
    if not ratios.size:
        return 0.0
    return float(np.quantile(np.abs(ratios), settings.quantile))


def largest_quantile(found: Sequence[float]) -> float:
    """Returns the q of all ranks; 1 if all gradients are zero."""
    largest = max(found)
    return max(largest, _LEAST_QUANTILE) if largest else 1.0


class Quantiles:
    """The q of each array, equal on all ranks.

    Args:
        every: Number of exchanges after which quantiles are computed again.

    Attributes:
        renewal: Number of the renewal to which this exchange belongs, from 0 on. Each
            makes other draws.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._age = self.renewal = 0
        self._by_name: dict[str, float] = {}
        self._names: list[str] = []
        self._now: list[float] = []

    def open(self, specs: Sequence[Spec]) -> list[float]:
        """Begins an exchange. It only counts if an array is coded.

        Returns:
            The q of each array. Zeros, to be replaced, where a new q is needed.
        """
        if all(spec.is_exempt for spec in specs):
            self._names, self._now = [], []
            return [0.0] * len(specs)
        if self._age % self._every == 0:
            self._by_name.clear()
        self.renewal = self._age // self._every
        self._age += 1
        self._names = [spec.name for spec in specs]
        self._now = [self._by_name.get(name, 0.0) for name in self._names]
        return self._now

    @property
    def are_new(self) -> bool:
        """Whether this exchange computes some q."""
        return any(name not in self._by_name for name in self._names)

    def keep(self) -> None:
        """Ends an exchange, whose q are used in the next ones."""
        self._by_name.update(zip(self._names, self._now))

    @property
    def names(self) -> list[str]:
        """The names of arrays that have a q."""
        return list(self._by_name)

    def state(self, name: str) -> dict[str, Any]:
        """Returns the state of an array for the next exchanges."""
        return {"age": self._age, "q": self._by_name.get(name)}

    def load(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Loads results of :meth:`state`, by name of the array."""
        self._by_name = {}
        for name, state in states.items():
            self._age = state["age"]
            if state["q"] is not None:
                self._by_name[name] = state["q"]
