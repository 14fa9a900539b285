"""Holds microbatches elsewhere than in memory between forward and backward.

The schedule says when each is needed again. It is asked for one action earlier, so that
reading it overlaps with that action::

    actions    F0      F1      F2      B0      B1      B2
    disk        write 0 write 1 read 0  read 1
                                (2 is needed before long, and stays: F2 .. B2)
                                 write 2 ...    read 2

A microbatch whose backward is the next action on its rank stays in memory. One whose
input gradients are computed (I) is in memory until its weights' are (W).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import NamedTuple

import numpy as np

from divisible.schedules.actions import Action
from divisible.streaming.held_store import HeldStore
from pipeline.stages.held import Graph, Inputs
from pipeline.stages.leaving_arrays import take_out
from pipeline.stages.stage import Stage


class Absence(NamedTuple):
    """When a microbatch leaves memory and is needed again, as positions of actions.

    Attributes:
        leaves: Of its forward, after which it leaves.
        returns: Of the first action that needs it again.
    """

    leaves: int
    returns: int


def absences(actions: Sequence[Action]) -> list[Absence]:
    """Returns when the microbatches of a rank are elsewhere, by their return.

    Args:
        actions: What the rank does, in order.

    Example:
        >>> actions = [Action.parse(a) for a in ('0F0', '0F1', '0B0', '0F2', '0B2')]
        >>> absences(actions)
        [Absence(leaves=0, returns=2)]
    """
    forwards: dict[tuple[int, int], int] = {}
    found = []
    for position, action in enumerate(actions):
        which = action.stage, action.microbatch
        if action.kind == "F":
            forwards[which] = position
        elif which in forwards:
            leaves = forwards.pop(which)
            if position - leaves > 1:
                found.append(Absence(leaves, position))
    return found


class HeldElsewhere:
    """Moves what one rank's stages hold to a store, and back in time.

    Args:
        store (HeldStore): Where to.
    """

    def __init__(self, store: HeldStore) -> None:
        self._store = store
        self._position = 0
        self._leaving: frozenset[int] = frozenset()
        self._returning: dict[int, int] = {}
        self._away: dict[int, _Away] = {}

    def begin(self, actions: Iterable[Action]) -> None:
        """Begins with a rank's actions of a minibatch."""
        self._store.clear()
        self._away.clear()
        found = absences(list(actions))
        self._position = 0
        self._leaving = frozenset(each.leaves for each in found)
        self._returning = {each.returns: each.leaves for each in found}

    def before(self) -> None:
        """Prepares for the next action: what it needs is in memory.

        Raises:
            OSError: If it was lost.
            TimeoutError: If the disk does not answer.
        """
        needed = self._away.pop(self._returning.get(self._position), None)
        if needed is not None:
            needed.come_back(self._store)
        soon = self._away.get(self._returning.get(self._position + 1))
        if soon is not None:
            self._store.fetch(soon.key)

    def after(self, stage: Stage, microbatch: int) -> None:
        """Ends an action of a stage: what is not needed soon leaves memory.

        Raises:
            OSError: If there is no room for it.
            TimeoutError: If the disk does not answer.
        """
        if self._position in self._leaving:
            away = _Away.of(stage, microbatch, self._store)
            if away is not None:
                self._away[self._position] = away
        self._position += 1

    def close(self) -> None:
        """Frees the store."""
        self._store.close()


class _Part(NamedTuple):
    """The arrays that one segment of a stage holds, kept elsewhere."""

    held: MutableMapping[int, Graph | Inputs]
    n_buffers: int
    come_back: Callable[[list[np.ndarray]], Graph | Inputs]


class _Away(NamedTuple):
    """A microbatch of a stage, elsewhere."""

    microbatch: int
    key: int
    parts: list[_Part]

    @classmethod
    def of(cls, stage: Stage, microbatch: int, store: HeldStore) -> _Away | None:
        """Sends it away; returns ``None`` if nothing is held of it."""
        parts, buffers = [], []
        for held in stage.held(microbatch):
            left = take_out(held.pop(microbatch), stage.links())
            parts.append(_Part(held, len(left.buffers), left.come_back))
            buffers += left.buffers
            del left
        return cls(microbatch, store.put(buffers), parts) if parts else None

    def come_back(self, store: HeldStore) -> None:
        """Puts it back where it was."""
        buffers = iter(store.take(self.key))
        for held, n_buffers, come_back in self.parts:
            held[self.microbatch] = come_back([next(buffers) for _ in range(n_buffers)])
