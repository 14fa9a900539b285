"""The quantiles of ``'oyama2017'``: computed now and then, and kept in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data_parallel.arrays import Spec


class Quantiles:
    """The q of each array, equal on all ranks.

    Args:
        every: Number of exchanges after which quantiles are computed again.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._age = 0
        self._by_name: dict[str, float] = {}
        self._names: list[str] = []
        self._now: list[float] = []

    def open(self, specs: Sequence[Spec]) -> list[float]:
        """Begins an exchange.

        Returns:
            The q of each array. Zeros, to be replaced, where a new q is needed.
        """
        if self._age % self._every == 0:
            self._by_name.clear()
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
