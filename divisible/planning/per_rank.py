"""Numbers for ranks or links: one for all of them, or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import numpy as np

from divisible.number_lists import amount, numbers
from divisible.records import LIMIT, shown

#: A number for all ranks or links, or one for each.
PerRank = Union[float, Sequence[float]]


def spread(name: str, values: PerRank, n: int, what: str = "ranks") -> np.ndarray:
    """Returns one number for each of ``n``; further numbers are left out.

    Raises:
        TypeError: If a value is not a number.
        ValueError: If there are fewer numbers than ``n``.
    """
    array = numbers(name, values)
    if array.ndim == 0:
        return np.full(n, float(array))
    if array.ndim != 1 or len(array) < n:
        raise ValueError(
            f"{name} has {amount(array)}, but there are {n} {what}: give one number"
            f" for all or one for each"
        )
    return array[:n]


def spread_speeds(speeds: PerRank | None, n: int) -> np.ndarray:
    """Returns the speed of each of ``n`` ranks, 1 by default.

    Raises:
        ValueError: If there are fewer speeds than ``n``, or one is not finite and
            positive.
    """
    speeds = spread("speeds", 1.0 if speeds is None else speeds, n)
    if not np.all((speeds > 1 / LIMIT) & (speeds < LIMIT)):
        raise ValueError(
            f"speeds must be finite and positive, from 2**-63 to 2**63, not"
            f" {shown(speeds)}"
        )
    return speeds


def spread_memory(memory: PerRank | None, n: int) -> np.ndarray:
    """Returns the bytes that each of ``n`` ranks may use, no limit by default.

    Raises:
        ValueError: If there are fewer numbers than ``n``, or one is not positive.
    """
    limits = spread("memory", np.inf if memory is None else memory, n)
    if not np.all(limits > 0):
        raise ValueError(f"memory must be positive, not {shown(memory)}")
    return limits
