"""The quantiles of ``'oyama2017'``: taken anew now and then, kept in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data_parallel.arrays import Spec


class Quantiles:
    """The q of each array, the same on all ranks.

    Args:
        every: After how many exchanges they are taken anew.
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
            The q of each array; zeros, to be replaced, where it is to be taken anew.
        """
        if self._age % self._every == 0:
            self._by_name.clear()
        self._age += 1
        self._names = [spec.name for spec in specs]
        self._now = [self._by_name.get(name, 0.0) for name in self._names]
        return self._now

    @property
    def are_new(self) -> bool:
        """Whether this exchange takes some that are not kept yet."""
        return any(name not in self._by_name for name in self._names)

    def keep(self) -> None:
        """Ends an exchange: what it has found holds for the next ones."""
        self._by_name.update(zip(self._names, self._now))

    @property
    def names(self) -> list[str]:
        """The arrays that have one."""
        return list(self._by_name)

    def state(self, name: str) -> dict[str, Any]:
        """Returns what the next exchanges of an array depend on."""
        return {"age": self._age, "q": self._by_name.get(name)}

    def load(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Takes what :meth:`state` has returned, by the name of the array."""
        self._by_name = {}
        for name, state in states.items():
            self._age = state["age"]
            if state["q"] is not None:
                self._by_name[name] = state["q"]
