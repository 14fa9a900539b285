"""Holds microbatches outside memory, or in bfloat16, between forward and backward.

:mod:`divisible.schedules.absences` determines which microbatches leave, and when each
is read back: one action before it is needed, so that reading overlaps with that action.
From bfloat16 it is widened directly before it is needed.
A microbatch whose input gradients are computed (I) stays in memory until its weight
gradients are computed (W).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import NamedTuple

import numpy as np

from divisible.schedules.absences import Absences
from divisible.streaming.held_in_half import HeldInHalf
from divisible.streaming.held_store import HeldStore
from pipeline.stages.held import Graph, Inputs
from pipeline.stages.leaving_arrays import EVERYTHING, Leaving, take_out
from pipeline.stages.stage import Stage


class HeldElsewhere:
    """Moves microbatches of one rank's stages to a store, and back in time.

    Args:
        store (HeldStore or HeldInHalf): Store outside memory, such as a file, or for
            fewer bits.
        leaving (Leaving): The arrays that go there.
    """

    def __init__(
        self, store: HeldStore | HeldInHalf, leaving: Leaving = EVERYTHING
    ) -> None:
        self._store, self._leaving_arrays = store, leaving
        self._position = 0
        self._leaving: frozenset[int] = frozenset()
        self._returning: dict[int, int] = {}
        self._away: dict[int, _Away] = {}

    def begin(self, absences: Absences) -> None:
        """Begins a minibatch.

        Args:
            absences: Absences of this rank's microbatches, as positions among its
                actions.
        """
        self._store.clear()
        self._away.clear()
        leaves, returns = absences.leaves.tolist(), absences.returns.tolist()
        self._position = 0
        self._leaving = frozenset(leaves)
        self._returning = dict(zip(returns, leaves))

    def before(self) -> None:
        """Prepares for the next action: its microbatch returns to memory.

        Raises:
            OSError: If the microbatch was lost.
            TimeoutError: If the disk does not answer.
        """
        needed = self._away.pop(self._returning.get(self._position), None)
        if needed is not None:
            needed.come_back(self._store)
        soon = self._away.get(self._returning.get(self._position + 1))
        if soon is not None:
            self._store.fetch(soon.key)

    def after(self, stage: Stage, microbatch: int) -> None:
        """Ends an action: a microbatch that is not needed soon leaves memory.

        Raises:
            OSError: If the store has no room for it.
            TimeoutError: If the disk does not answer.
        """
        if self._position in self._leaving:
            leaving = self._leaving_arrays
            away = _Away.of(stage, microbatch, self._store, leaving)
            if away is not None:
                self._away[self._position] = away
        self._position += 1

    def close(self) -> None:
        """Closes the store."""
        self._store.close()


class _Part(NamedTuple):
    """One segment's arrays of a microbatch, in the store."""

    held: MutableMapping[int, Graph | Inputs]
    n_buffers: int
    come_back: Callable[[list[np.ndarray]], Graph | Inputs]


class _Away(NamedTuple):
    """A microbatch of a stage, in the store."""

    microbatch: int
    key: int
    parts: list[_Part]

    @classmethod
    def of(
        cls,
        stage: Stage,
        microbatch: int,
        store: HeldStore | HeldInHalf,
        leaving: Leaving,
    ) -> _Away | None:
        """Sends a microbatch to the store; returns ``None`` if it is not held."""
        parts, buffers = [], []
        for held in stage.held(microbatch):
            # The step holds the inputs of the model.
            is_first = not parts and stage.layers.layer_range[0] == 0
            left = take_out(held.pop(microbatch), stage.links(), leaving, is_first)
            parts.append(_Part(held, len(left.buffers), left.come_back))
            buffers += left.buffers
            del left
        return cls(microbatch, store.put(buffers), parts) if parts else None

    def come_back(self, store: HeldStore | HeldInHalf) -> None:
        """Reads the microbatch from the store, and returns it to its segments."""
        buffers = iter(store.take(self.key))
        for held, n_buffers, come_back in self.parts:
            held[self.microbatch] = come_back([next(buffers) for _ in range(n_buffers)])
