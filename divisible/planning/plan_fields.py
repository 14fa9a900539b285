"""The fields of a plan that are lists, checked: they may come from a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from divisible.planning.units import count
from divisible.records import plain_integer, shown

#: Where microbatches may wait for their backward.
HOLD_IN = ("memory", "disk")


def chains(fusion: Any, n_layers: int) -> tuple[tuple[int, int], ...]:
    """Returns chains of layers as pairs of positions in the model."""
    found = []
    for i, chain in enumerate(listed("fusion", fusion)):
        ends = [plain_integer(f"chain {i} of fusion", end) for end in listed("", chain)]
        if len(ends) != 2 or not 0 <= ends[0] < ends[1] <= n_layers:
            raise ValueError(
                f"chain {i} of fusion is {shown(chain)}: expected its first position"
                f" and the one after its last, of {count(n_layers, 'layer')}"
            )
        found.append((ends[0], ends[1]))
    return tuple(found)


def places(hold_in: Any, n_ranks: int) -> tuple[str, ...]:
    """Returns where the microbatches of each rank wait; in memory by default."""
    found = tuple(listed("hold_in", hold_in))
    if any(place not in HOLD_IN for place in found):
        raise ValueError(
            f"hold_in is {shown(found)}: expected {' or '.join(map(repr, HOLD_IN))}"
            f" for each rank"
        )
    if len(found) not in (0, n_ranks):
        raise ValueError(
            f"hold_in {shown(found)} is for {count(len(found), 'rank')}, but a"
            f" pipeline has {n_ranks}"
        )
    return found or ("memory",) * n_ranks


def positions(streamed: Any, n_layers: int) -> tuple[int, ...]:
    """Returns positions of layers in the model."""
    found = tuple(
        plain_integer(f"position {i} of streamed", position)
        for i, position in enumerate(listed("streamed", streamed))
    )
    if any(not 0 <= position < n_layers for position in found):
        raise ValueError(
            f"streamed is {shown(found)}: expected positions of"
            f" {count(n_layers, 'layer')}"
        )
    return tuple(sorted(set(found)))


def listed(name: str, values: Any) -> Any:
    """Returns values of which there may be any number; a text is none of them."""
    if isinstance(values, (str, bytes, dict)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list, not {shown(values)}")
    return values
