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

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from divisible.planning.cost_model import CostModel
from divisible.planning.recomputed_layers import LayerArrays, recomputed_profile

# Largest number of states at a layer; of similar ones, those with less memory stay.
_MOST_STATES = 256
# For few layers, enough for all of them.
_FEW_LAYERS, _ALL_STATES = 12, 4096
# Number of blocks of a stage, or of a model, whose layers are computed again together.
_MOST_BLOCKS = 32


class Room(NamedTuple):
    """The layers or blocks of a model, and what else a stage holds of them.

    Attributes:
        edges: Position of the first layer of each block, and the number of layers.
        arrays: Costs of the blocks.
        at_edges: Sums over the layers before each edge, and what crosses there:
            ``fixed``, ``parameters``, ``pending``, ``own_input``, ``passing``,
            ``ended_skips``, ``own_output``, ``boundary`` of `LayerSums`.
        buffers: Bytes of a stage for the exchange between replicas.
    """

    edges: np.ndarray
    arrays: LayerArrays
    at_edges: tuple[np.ndarray, ...]
    buffers: float

    @classmethod
    def of(cls, model: CostModel, edges: Sequence[int]) -> Room:
        """Returns blocks of a model that begin and end at given positions."""
        profile, edges = model.largest, np.asarray(edges)
        sums = profile.sums
        columns = (
            sums.fixed,
            sums.parameters,
            sums.pending,
            sums.own_input,
            sums.passing,
            sums.ended_skips,
            sums.own_output,
            sums.boundary,
        )
        whole = LayerArrays.of(profile)
        first, last = edges[0], edges[-1]
        part = LayerArrays(*(column[first:last] for column in whole))
        return cls(
            edges,
            part.blocks(edges[:-1] - first),
            tuple(column[edges] for column in columns),
            float(model.stage_exchange_bytes),
        )


class Sweep(NamedTuple):
    """The cheapest choices of all stages that begin at one block.

    Attributes:
        seconds: Least seconds of second forwards, for each number of the block behind
            the last one; infinite where nothing fits.
        source, first: The last state of the best choice, and the first block of the run
            that ends it, or -1.
        parent, begun: For each state the one before it, and the first block of the run
            that ends in it, or -1.
    """

    seconds: np.ndarray
    source: np.ndarray
    first: np.ndarray
    parent: np.ndarray
    begun: np.ndarray

    def chosen(self, start: int, end: int) -> list[tuple[int, int]]:
        """Returns the runs of blocks in the stage from its start up to an end."""
        runs: list[tuple[int, int]] = []
        state, begun, position = self.source[end], self.first[end], end
        while position > start:
            if begun < 0:
                position -= 1
            else:
                runs.append((int(begun), position))
                position = int(begun)
            begun, state = self.begun[state], self.parent[state]
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
    is_small = stop - start <= _FEW_LAYERS
    fixed, parameters, *others = room.at_edges
    return Sweep(
        *_program()(
            start,
            stop,
            *map(np.ascontiguousarray, room.arrays),
            fixed + model.copies[stage] * parameters,
            *map(np.ascontiguousarray, others),
            *(np.ascontiguousarray(row[:, stage], float) for row in model.moments[:3]),
            room.buffers,
            float(limit),
            _ALL_STATES if is_small else _MOST_STATES,
        )
    )


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


@functools.cache
def _program() -> Callable:
    """Compiles the sweep; numba takes a while to import."""
    from chainer_kernels.compiling import njit

    return njit()(_sweep)


def _sweep(
    start,
    stop,
    forward,
    held,
    again,
    unheld,
    output,
    passing,
    ended,
    workspace,
    fixed,
    pending,
    own_input,
    passing_at,
    ended_before,
    own_output,
    boundary,
    in_flight,
    graphs,
    pending_counts,
    buffers,
    limit,
    most,
):
    """Finds the least seconds for each end; see `Sweep` for the results.

    A state has its seconds, bytes of a graph, and bytes at the peak. List 0 has the
    states whose last block is plain, list 1 those whose last block ends a run.
    """
    n = stop - start
    seconds = np.full(stop + 1, np.inf)
    source = np.full(stop + 1, -1)
    source_first = np.full(stop + 1, -1)
    took, graph, peak = np.zeros(1024), np.zeros(1024), np.zeros(1024)
    parent, begun = np.full(1024, -1), np.full(1024, -1)
    used = 1
    states = np.zeros((2, n + 1, most), np.int64)
    counts = np.zeros((2, n + 1), np.int64)
    counts[0, 0] = 1
    for end in range(start + 1, stop + 1):
        skips = min(passing_at[start], ended_before[end] - ended_before[start])
        inputs = own_input[start] + skips
        rest = fixed[end] - fixed[start] + inputs + buffers
        waiting = pending[end] - pending[start]
        for kind in range(2):
            place = end - start
            run_seconds = run_bytes = run_ended = run_workspace = 0.0
            for first in range(end - 1, start - 1, -1):
                if kind == 0 and first < end - 1:
                    break
                run_seconds += forward[first]
                run_bytes += again[first]
                run_ended += ended[first]
                run_workspace = max(run_workspace, workspace[first])
                if kind == 0:
                    more_seconds, its_peak = 0.0, workspace[first]
                    more_graph, at_end = held[first], held[first] + boundary[end]
                else:
                    more_seconds, its_peak = run_seconds, run_bytes + run_workspace
                    if rest + its_peak > limit:
                        break
                    before = passing[first - 1] if first > start else passing_at[start]
                    new = max(passing[end - 1] - before + run_ended, 0.0)
                    stays = output[end - 1] + min(passing[end - 1], new)
                    more_graph = stays
                    at_end = 0.0
                for list_ in range(2):
                    # A run holds its input, also where the layer before does not.
                    late = 0.0
                    if kind == 1 and list_ == 0 and first > start:
                        late = unheld[first - 1]
                    for k in range(counts[list_, first - start]):
                        state = states[list_, first - start, k]
                        its_took = took[state] + more_seconds
                        top = max(peak[state], its_peak)
                        # The block may be the last one of the stage.
                        moment = 0.0
                        its_graph = graph[state] + late + at_end
                        for m in range(graphs.size):
                            moment = max(
                                moment,
                                in_flight[m] * inputs
                                + graphs[m] * its_graph
                                + pending_counts[m] * waiting,
                            )
                        if (
                            its_took < seconds[end]
                            and moment + rest + own_output[end] + top <= limit
                        ):
                            seconds[end] = its_took
                            source[end] = state
                            source_first[end] = first if kind else -1
                        # Or more blocks follow.
                        moment = 0.0
                        its_graph = graph[state] + late + more_graph
                        for m in range(graphs.size):
                            moment = max(
                                moment,
                                in_flight[m] * inputs
                                + graphs[m] * its_graph
                                + pending_counts[m] * waiting,
                            )
                        if moment + rest + top > limit:
                            continue
                        # Leaves out what is nowhere better than another state.
                        is_worse = False
                        k2 = 0
                        while k2 < counts[kind, place]:
                            other = states[kind, place, k2]
                            if (
                                took[other] <= its_took
                                and graph[other] <= its_graph
                                and peak[other] <= top
                            ):
                                is_worse = True
                                break
                            if (
                                took[other] >= its_took
                                and graph[other] >= its_graph
                                and peak[other] >= top
                            ):
                                counts[kind, place] -= 1
                                last = states[kind, place, counts[kind, place]]
                                states[kind, place, k2] = last
                            else:
                                k2 += 1
                        if is_worse:
                            continue
                        at = counts[kind, place]
                        if at == most:
                            at = 0
                            for k2 in range(1, most):
                                gap = abs(took[states[kind, place, k2]] - its_took)
                                nearest = took[states[kind, place, at]] - its_took
                                if gap < abs(nearest):
                                    at = k2
                            other = states[kind, place, at]
                            factor = graphs.max()
                            mine = factor * its_graph + top
                            if factor * graph[other] + peak[other] <= mine:
                                continue
                        else:
                            counts[kind, place] += 1
                        if used == took.size:
                            none, more = np.full(used, -1), np.zeros(used)
                            took = np.concatenate((took, more))
                            graph = np.concatenate((graph, more))
                            peak = np.concatenate((peak, more))
                            parent = np.concatenate((parent, none))
                            begun = np.concatenate((begun, none))
                        took[used], graph[used], peak[used] = its_took, its_graph, top
                        parent[used] = state
                        begun[used] = first if kind else -1
                        states[kind, place, at] = used
                        used += 1
    return seconds, source, source_first, parent, begun
