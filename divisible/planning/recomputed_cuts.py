"""Cuts of a model some of whose layers are computed again, so that it fits.

The time of a stage depends on the layers that are chosen in it. So every possible stage
is chosen for, and the slowest one is then as fast as possible::

    best[s][j] = min over i < j of  max(best[s - 1][i], stage s of the blocks i..j-1,
                                                        with its second forwards)

Models of many layers are cut between blocks of neighbours.
"""

from __future__ import annotations

import numpy as np

from divisible.planning.cost_model import CostModel
from divisible.planning.cuts import MemoryLimitError
from divisible.planning.layer_choice import Room, block_edges, sweep
from divisible.planning.possible_stages import busy_seconds, link_seconds
from divisible.planning.units import count

# Number of blocks that a model is cut between, besides those that its stages need.
_MOST_BLOCKS = 20
# Two sums of the same times in another order differ by rounding.
_ROUNDING = 1 + 1e-12


def recomputed_cuts(model: CostModel, limits: np.ndarray) -> list[int]:
    """Finds the cuts with the fastest slowest stage, with second forwards.

    Args:
        model: The costs of the stages, none of which computes a layer again.
        limits: Bytes that each stage may use.

    Returns:
        The cuts.

    Raises:
        MemoryLimitError: If nothing fits, whatever is computed again.
    """
    n_layers = len(model.largest)
    most = max(_MOST_BLOCKS, 2 * model.n_stages)
    edges = block_edges(model, 0, n_layers, most)
    costs = _seconds_of_stages(model, limits, edges)
    slowest, parents = _least(costs, np.inf)
    if not np.isfinite(slowest):
        raise MemoryLimitError(
            f"no plan of {count(model.n_stages, 'stage')} fits into the memory of the"
            f" ranks, whichever layers are recomputed. Use more ranks or smaller"
            f" microbatches."
        )
    # Among the cuts with the same slowest stage, those with the least sum of squares.
    _, parents = _least(costs, slowest * _ROUNDING)
    blocks = [len(edges) - 1]
    for row in parents[::-1]:
        blocks.append(int(row[blocks[-1]]))
    return [edges[block] for block in blocks[::-1]]


def _seconds_of_stages(
    model: CostModel, limits: np.ndarray, edges: list[int]
) -> np.ndarray:
    """Returns the seconds of every possible stage; infinite if it does not fit.

    Returns:
        Shape (n_stages, n_edges, n_edges), by the edges where a stage begins and ends.
    """
    room, n = Room.of(model, edges), len(edges) - 1
    plain, links = busy_seconds(model)[:, edges], link_seconds(model)[:, edges]
    costs = np.full((model.n_stages, n + 1, n + 1), np.inf)
    for s in range(model.n_stages):
        for i in range(s, n) if s else [0]:
            again = sweep(model, room, s, limits[s], i, n).seconds[i + 1 :]
            seconds = plain[s, i + 1 :] - plain[s, i] + again / model.speeds[s]
            if model.links.overlap:
                seconds = np.maximum(seconds, links[s, i])
            else:
                seconds = seconds + 2 * (links[s, i] + links[s + 1, i + 1 :])
            costs[s, i, i + 1 :] = seconds
    return costs


def _least(costs: np.ndarray, cap: float) -> tuple[float, list[np.ndarray]]:
    """Returns the least cost, and for each stage and end the best start.

    Args:
        costs: Seconds of the stages.
        cap: Without one, infinity: the slowest stage is minimised. With one, no stage
            may be slower, and the sum of squares is minimised.
    """
    adds = np.isfinite(cap)
    best = np.full(costs.shape[1], np.inf)
    best[0] = 0.0
    parents = []
    for stage in costs:
        allowed = np.where(stage <= cap, stage, np.inf)
        if adds:
            values = best[:, None] + allowed**2
        else:
            values = np.maximum(best[:, None], allowed)
        parents.append(values.argmin(axis=0))
        best = values.min(axis=0)
    return float(best[-1]), parents
