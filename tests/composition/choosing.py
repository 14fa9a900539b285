"""Choices, by a seed or by hypothesis, which shrinks them towards the first ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Protocol, TypeVar

import numpy as np
from hypothesis import strategies as st

_Value = TypeVar("_Value")


class Choices(Protocol):
    """A source of choices."""

    def integer(self, low: int, high: int) -> int:
        """Returns a number from ``low`` to ``high``."""

    def one_of(self, values: Sequence[_Value]) -> _Value:
        """Returns one of some values."""

    def chance(self, percent: int) -> bool:
        """Returns whether something is the case, with a probability."""


class Seeded:
    """Choices that depend on a seed."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.RandomState(seed % 2**32)

    def integer(self, low: int, high: int) -> int:
        return int(self._random.randint(low, high + 1))

    def one_of(self, values: Sequence[_Value]) -> _Value:
        return values[self.integer(0, len(values) - 1)]

    def chance(self, percent: int) -> bool:
        return self.integer(0, 99) >= 100 - percent


class Drawn:
    """Choices of hypothesis."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def one_of(self, values: Sequence[_Value]) -> _Value:
        return values[self.integer(0, len(values) - 1)]

    def chance(self, percent: int) -> bool:
        return self.integer(0, 99) >= 100 - percent


def some(choices: Choices, values: Sequence[_Value], most: int) -> list[_Value]:
    """Returns up to ``most`` different values, in the order in which they are given."""
    left = list(range(len(values)))
    n = choices.integer(0, min(most, len(left)))
    chosen = []
    for _ in range(n):
        chosen.append(left.pop(choices.integer(0, len(left) - 1)))
    return [values[i] for i in sorted(chosen)]
