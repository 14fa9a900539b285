"""The search for the best cuts, a dynamic program over the stages.

Every method of `partition` is this program, with other costs. ``best[s][j]`` is the
least possible cost of the layers before ``j`` in stages 0 to ``s``::

    best[s][j] = min over i < j of  max(best[s - 1][i], cost of stage s = layers i..j-1)

         0          i           j         n
         |--- s - 1 stages ---|-- stage s --|...

The stage from ``i`` grows as ``i`` falls. So the search over ``i`` stops once the
layers' time alone exceeds the best cost found, and skips blocks of starts that cannot
be better. Thousands of layers are cut without a wait.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
    lacking = cost is None
    memory, layers = memory_table(model), model.largest.sums
    if lacking:
        none = np.zeros_like(memory.at_least)
        cost = StageCost(none, none, none, memory.at_least)
    value, parents = _program()(
        *map(np.ascontiguousarray, cost),
        memory.ends,
        memory.starts,
        memory.inputs,
        layers.passing,
        layers.ended_skips,
        layers.workspace,
        limits,
        lacking,
        np.inf if cap is None else cap,
        cap is not None,
        _BLOCK,
    )
    if not np.isfinite(value):
        return value, None
    cuts = [len(model.largest)]
    for row in parents[::-1]:
        cuts.append(int(row[cuts[-1]]))
    return value, cuts[::-1]


@functools.cache
def _program() -> Callable:
    """Compiles the dynamic program; numba takes a while to import."""
    from chainer_kernels.compiling import njit

    return njit()(_dynamic_program)


def _dynamic_program(
    ends,
    starts,
    floor,
    bound,
    memory_ends,
    memory_starts,
    inputs,
    passing,
    ended_skips,
    workspace,
    limits,
    lacking,
    cap,
    squares,
    block_size,
):
    """Finds the least cost, and for each stage and end its best start.

    Starts are tried from the end backwards. The best possible cost in a block of starts
    is that of the layers before its best start and of the layers after the block.
    """
    n_stages, n = ends.shape[0], ends.shape[1] - 1
    n_blocks = -(-n // block_size)
    peaks = np.empty(n_blocks)
    for block in range(n_blocks):
        peaks[block] = workspace[block * block_size : (block + 1) * block_size].max()
    parents = np.full((n_stages, n + 1), -1, np.int32)
    before = np.full(n + 1, np.inf)
    before[0] = -np.inf if not squares else 0.0
    least_in = np.empty(n_blocks)
    for s in range(n_stages):
        for block in range(n_blocks):
            least_in[block] = before[
                block * block_size : (block + 1) * block_size
            ].min()
        least_up_to = least_in.copy()
        for block in range(1, n_blocks):
            least_up_to[block] = min(least_up_to[block - 1], least_up_to[block])
        now = np.full(n + 1, np.inf)
        first = n if s == n_stages - 1 else s + 1
        for j in range(first, n - (n_stages - 1 - s) + 1):
            best = np.inf
            peak = 0.0
            for block in range((j - 1) // block_size, s // block_size - 1, -1):
                last = min(j, (block + 1) * block_size) - 1
                at_least = bound[s, j] - bound[s, last]
                if lacking:
                    at_least -= limits[s]
                if squares:
                    here = least_in[block] + at_least * at_least
                    ever = least_up_to[block] + at_least * at_least
                else:
                    here = max(least_in[block], at_least)
                    ever = max(least_up_to[block], at_least)
                if at_least > cap or ever >= best:
                    break
                if here >= best and block < (j - 1) // block_size:
                    peak = max(peak, peaks[block])
                    continue
                for i in range(last, max(block * block_size, s) - 1, -1):
                    peak = max(peak, workspace[i])
                    if before[i] >= best:
                        continue
                    skips = min(passing[i], ended_skips[j] - ended_skips[i])
                    held = -np.inf
                    for k in range(memory_ends.shape[0]):
                        moment = memory_ends[k, s, j] - memory_starts[k, s, i]
                        held = max(held, moment + inputs[k, s] * skips)
                    lack = held + peak - limits[s]
                    if lacking:
                        cost = lack
                    elif lack > 0:
                        continue
                    else:
                        cost = max(ends[s, j] - starts[s, i], floor[s, i])
                    if cost > cap:
                        continue
                    value = before[i] + cost * cost if squares else max(before[i], cost)
                    if value < best:
                        best = value
                        parents[s, j] = i
            now[j] = best
        before = now
    return before[n], parents
