"""The choice of layers to compute again, so that a stage fits into its memory.

Each stage gets the layers whose second forwards take least time, among all that make it
fit. Layer after layer, states are kept of which none is better than another in
everything: seconds of second forwards, bytes held by each microbatch, and bytes at the
peak of a backward::

    layers    0      1      2      3
              plain -+- plain -+- ...
                     '- run of 1, 1..2, 1..3, computed again as one

So the choice is the best one, unless there are more states than `_MOST_STATES`. A stage
of many layers is chosen by blocks of neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from divisible.planning.cheapest_runs import Memory, program, records
from divisible.planning.cost_model import CostModel
from divisible.planning.recomputed_layers import LayerArrays, recomputed_profile

# Largest number of states at a layer; of similar ones, those with less memory stay.
_MOST_STATES = 256
# For few layers, enough for all of them.
_FEW_LAYERS, _ALL_STATES = 12, 4096
# The counts and sums that the bytes of a stage depend on.
_HELD = ("in_flight", "graphs", "pending")
_AT_EDGES = (
    *("fixed", "parameters", "pending", "own_input", "own_output"),
    *("passing", "ended_skips", "boundary"),
)
# Number of blocks of a stage, or of a model, whose layers are computed again together.
_MOST_BLOCKS = 32


class Room(NamedTuple):
    """The layers or blocks of a model, and what else a stage holds of them.

    Attributes:
        blocks: Records of `LayerArrays`, one for each block.
        edges: Records of sums over the layers before each edge of a block: the
            attributes of `LayerSums` in ``_AT_EDGES``.
        moments: Records of how often each stage holds what it holds, of shape
            (n_stages, n_moments): the attributes of `Moments` in ``_HELD``.
        buffers: Bytes of a stage for the exchange between replicas.
    """

    blocks: np.ndarray
    edges: np.ndarray
    moments: np.ndarray
    buffers: float

    @classmethod
    def of(cls, model: CostModel, edges: Sequence[int]) -> Room:
        """Returns blocks of a model that begin and end at given positions."""
        profile, edges = model.largest, np.asarray(edges)
        whole, sums = LayerArrays.of(profile), profile.sums
        first, last = edges[0], edges[-1]
        part = LayerArrays(*(column[first:last] for column in whole))
        return cls(
            records(part.blocks(edges[:-1] - first)._asdict()),
            records({name: getattr(sums, name)[edges] for name in _AT_EDGES}),
            records({name: getattr(model.moments, name).T for name in _HELD}),
            float(model.stage_exchange_bytes),
        )


class Sweep(NamedTuple):
    """The cheapest choices of all stages that begin at one block.

    Attributes:
        best: The best state for each edge where a stage may end, its seconds infinite
            where nothing fits.
        states: The states that the choices extend, by front, edge and place.
    """

    best: np.ndarray
    states: np.ndarray

    @property
    def seconds(self) -> np.ndarray:
        """Least seconds of second forwards, for each edge where a stage may end."""
        return self.best["seconds"]

    def chosen(self, start: int, end: int) -> list[tuple[int, int]]:
        """Returns the runs of blocks in the stage from its start up to an end."""
        runs: list[tuple[int, int]] = []
        state = self.best[end]
        while end > start:
            begun = int(state["begun"])
            if begun >= 0:
                runs.append((begun, end))
            end = begun if begun >= 0 else end - 1
            state = self.states[state["front"], end, state["place"]]
        return runs[::-1]


def sweep(
    model: CostModel, room: Room, stage: int, limit: float, start: int, stop: int
) -> Sweep:
    """Chooses layers for all stages that begin at one block.

    Args:
        model: The costs of the stages.
        room: The blocks.
        stage: Number of the stage.
        limit: Bytes that it may use.
        start: Number of its first block.
        stop: Number of the block behind the last one of the largest stage.
    """
    messages = (1.0 + float(numbers[stage]) for numbers in model.posted)
    copies, frees = float(model.copies[stage]), 1.0 - model.moments.has_pending[stage]
    memory = Memory(
        room.moments[stage], *messages, copies, room.buffers, frees, float(limit)
    )
    most = _ALL_STATES if stop - start <= _FEW_LAYERS else _MOST_STATES
    return Sweep(*program()(room.blocks, room.edges, memory, start, stop, most))


def layers_to_recompute(
    model: CostModel, cuts: Sequence[int], limits: np.ndarray
) -> tuple[tuple[int, int], ...] | None:
    """Chooses the runs of layers to compute again, for given cuts.

    Args:
        model: The costs of the stages, none of which computes a layer again.
        cuts: Positions of the cuts in the model.
        limits: Bytes that each stage may use.

    Returns:
        The first layer of each run, and the one behind its last, sorted; ``None`` if a
        stage fits with no choice.
    """
    fits = model.bytes(cuts) <= limits
    found: list[tuple[int, int]] = []
    for stage, (start, end) in enumerate(zip(cuts, cuts[1:])):
        if fits[stage]:
            continue
        edges = block_edges(model, start, end)
        room, n = Room.of(model, edges), len(edges) - 1
        swept = sweep(model, room, stage, limits[stage], 0, n)
        if not np.isfinite(swept.seconds[n]):
            return None
        found += [(edges[a], edges[b]) for a, b in swept.chosen(0, n)]
    return tuple(found)


def recomputing(
    model: CostModel, runs: Sequence[tuple[int, int]], cuts: Sequence[int]
) -> CostModel:
    """Returns the costs with layers whose forward runs again in their backward.

    Args:
        model: The costs without them.
        runs: The first layer of each run, and the one behind its last, sorted.
        cuts: Positions of the cuts in the model.
    """
    if not runs:
        return model
    profiles = [*model.profiles, *model.together.values()]
    changed = {
        id(profile): recomputed_profile(profile, runs, cuts)
        for profile in {id(profile): profile for profile in profiles}.values()
    }
    return replace(
        model,
        profiles=[changed[id(profile)] for profile in model.profiles],
        together={size: changed[id(p)] for size, p in model.together.items()},
    )


def block_edges(
    model: CostModel, start: int, end: int, most: int = _MOST_BLOCKS
) -> list[int]:
    """Returns where blocks of neighbours begin and end, equal in time and bytes."""
    if end - start <= most:
        return list(range(start, end + 1))
    arrays = LayerArrays.of(model.largest)
    weight = np.full(end - start, 1e-9)
    for column in (arrays.forward, arrays.again):
        part = column[start:end]
        weight += part / (part.sum() or 1.0)
    before = np.concatenate([[0.0], np.cumsum(weight)])
    wanted = np.linspace(0, before[-1], most + 1)[1:-1]
    inner = start + np.searchsorted(before, wanted)
    return sorted({start, *inner.tolist(), end})
