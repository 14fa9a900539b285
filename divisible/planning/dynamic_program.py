"""The search for the best cuts, a dynamic program over the stages.

Every method of `partition` is this program, with other costs. ``best[s][j]`` is the
least possible cost of the layers before ``j`` in stages 0 to ``s``::

    best[s][j] = min over i < j of  max(best[s - 1][i], cost of stage s = layers i..j-1)

         0          i           j         n
         |--- s - 1 stages ---|-- stage s --|...

The stage from ``i`` grows as ``i`` falls. So the search over ``i``, compiled in
`~divisible.planning.stage_starts`, stops once the layers' time alone exceeds the best
cost found. Thousands of layers are cut without a wait.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from divisible.planning.cost_model import CostModel
from divisible.planning.possible_stages import memory_table

# Two sums of the same times in another order differ by rounding.
_ROUNDING = 1e-12
# Number of starts of a stage that the dynamic program skips at once.
_BLOCK = 64


class StageCost(NamedTuple):
    """The costs of stages, by where they begin and end.

    Stage ``s`` of the layers ``i`` to ``j - 1`` costs the greater of ``ends[s, j] -
    starts[s, i]`` and ``floor[s, i]``, and no less than ``bound[s, j] - bound[s, i]``,
    which grows as ``i`` falls. If a shortage of memory is minimised, only ``bound`` is
    used, for the bytes needed.
    """

    ends: np.ndarray
    starts: np.ndarray
    floor: np.ndarray
    bound: np.ndarray


def evenest(model: CostModel, cost: StageCost, limits: np.ndarray) -> list[int] | None:
    """Minimises the greatest cost, then the sum of squares.

    Args:
        model: The costs of the stages; gives the memory that they need.
        cost: The costs to minimise.
        limits: The memory that each stage may use, in bytes; shape (n_stages,).

    Returns:
        The cuts; ``None`` if nothing fits.
    """
    most, cuts = _solve(model, cost, limits)
    if cuts is None:
        return None
    return _solve(model, cost, limits, cap=most * (1 + _ROUNDING))[1]


def least_lacking(model: CostModel, limits: np.ndarray) -> list[int]:
    """Returns the cuts whose largest shortage of memory is least."""
    return _solve(model, None, limits)[1]


def _solve(
    model: CostModel,
    cost: StageCost | None,
    limits: np.ndarray,
    cap: float | None = None,
) -> tuple[float, list[int] | None]:
    """Runs the dynamic program.

    Args:
        model: The costs of the stages; gives the memory that they need.
        cost: The costs to minimise; ``None`` to minimise the shortage of memory.
        limits: The memory of each stage, which the shortage is relative to if it is
            minimised.
        cap: Without it, the greatest cost of a stage is minimised. With it, no stage
            may cost more than this, and the sum of squares is minimised.

    Returns:
        The least cost, and the cuts; ``None`` if nothing fits.
    """
    # Imports numba, which takes a while.
    from divisible.planning.stage_starts import Aim, StageMemory, program

    table, layers = memory_table(model), model.largest.sums
    aim = Aim(cost is None, cap is not None, np.inf if cap is None else float(cap))
    if cost is None:
        none = np.zeros_like(table.at_least)
        cost = StageCost(none, none, none, table.at_least)
    memory = StageMemory(
        *table[:4], layers.passing, layers.ended_skips, table.reaches, limits
    )
    value, parents = program()(
        StageCost(*map(np.ascontiguousarray, cost)),
        StageMemory(*map(np.ascontiguousarray, memory)),
        aim,
        _BLOCK,
    )
    if not np.isfinite(value):
        return value, None
    cuts = [len(model.largest)]
    for row in parents[::-1]:
        cuts.append(int(row[cuts[-1]]))
    return value, cuts[::-1]
