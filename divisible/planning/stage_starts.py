"""The best start of each stage, compiled: the inner part of the search for cuts.

::

    starts of a stage that ends before layer j, from the end backwards

    |-- block 0 --|-- block 1 --|-- block 2 -|
                                  i ... i i  j
       no start of it is better:    start by start
       skipped, or the end

The best possible cost in a block of starts is that of the layers before its best start
and of the layers after the block. Where no start of the block can be better than the
best one so far, the block is skipped. Where no start before can be, the search ends.

Numba keeps compiled code until this file changes, so all of the code is here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from chainer_kernels.compiling import njit


class StageMemory(NamedTuple):
    """The memory of stages, by where they begin and end, and what they may use.

    Attributes:
        ends: Bytes up to each end; see `~.possible_stages.MemoryTable`.
        starts: Bytes up to each start, of the same shape.
        inputs: Numbers of microbatches, of shape (n_moments, n_stages).
        outputs: Numbers of microbatches, of shape (n_stages,).
        passing: Bytes of skip connections over each position, of shape (n_layers + 1,).
        ended_skips: Bytes of the skip connections that have ended, of the same shape.
        reaches: Bytes up to each layer while it computes, of shape (n_stages,
            n_layers).
        limits: Bytes that each stage may use, of shape (n_stages,).
    """

    ends: np.ndarray
    starts: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    passing: np.ndarray
    ended_skips: np.ndarray
    reaches: np.ndarray
    limits: np.ndarray


class Aim(NamedTuple):
    """The cost to minimise.

    Attributes:
        lacking: Whether the cost of a stage is its shortage of memory.
        squares: Whether the sum of squared costs is minimised, not the greatest cost.
        cap: The greatest cost that a stage may have.
    """

    lacking: bool
    squares: bool
    cap: float


class Blocks(NamedTuple):
    """The starts of a stage in blocks of equally many.

    Attributes:
        size: Number of starts of a block.
        peaks: The largest reach in each block.
        least: The least cost of the layers before a start, in each block.
        least_up_to: The least cost in a block and those before it.
    """

    size: int
    peaks: np.ndarray
    least: np.ndarray
    least_up_to: np.ndarray


@functools.cache
def program() -> Callable:
    """Compiles `_stage_starts`, or loads its code."""
    return njit()(_stage_starts)


def _stage_starts(cost, memory, aim, block_size):
    """Finds the least cost, and for each stage and end its best start.

    Args:
        cost: The `~.dynamic_program.StageCost`.
        memory: The `StageMemory`.
        aim: The `Aim`.
        block_size: Number of starts of a block.

    Returns:
        The least cost of all layers, infinite where nothing fits; and the starts, of
        shape (n_stages, n_layers + 1), -1 where there is none.
    """
    n_stages, n = cost.ends.shape[0], cost.ends.shape[1] - 1
    starts = np.full((n_stages, n + 1), -1, np.int32)
    before = np.full(n + 1, np.inf)
    before[0] = 0.0 if aim.squares else -np.inf
    for s in range(n_stages):
        peaks = -in_blocks(-memory.reaches[s], n, block_size)
        least = in_blocks(before, n, block_size)
        blocks = Blocks(block_size, peaks, least, least_so_far(least))
        now = np.full(n + 1, np.inf)
        # Each stage has one layer at least.
        first = n if s == n_stages - 1 else s + 1
        for j in range(first, n - (n_stages - 1 - s) + 1):
            now[j], starts[s, j] = best_start(s, j, before, cost, memory, aim, blocks)
        before = now
    return before[n], starts


@numba.njit
def in_blocks(values, n, size):
    """Returns the least value in each block of `size`, for `n` starts."""
    least = np.empty(-(-n // size))
    for block in range(least.size):
        least[block] = values[block * size : (block + 1) * size].min()
    return least


@numba.njit
def least_so_far(values):
    """Returns the least of the values up to each."""
    found = values.copy()
    for k in range(1, found.size):
        found[k] = min(found[k - 1], found[k])
    return found


@numba.njit
def best_start(s, j, before, cost, memory, aim, blocks):
    """Returns the least cost of the layers before `j`, and where stage `s` begins.

    Args:
        s: Number of the stage.
        j: End of the stage.
        before: The least cost of the layers before each start, in earlier stages.
        cost: The `~.dynamic_program.StageCost`.
        memory: The `StageMemory`.
        aim: The `Aim`.
        blocks: The starts, in `Blocks`.
    """
    # Taken out of the tuples here: each use in the loops would count references.
    starts, floor, bound = cost.starts[s], cost.floor[s], cost.bound[s]
    held_starts, inputs = memory.starts[:, s], memory.inputs[:, s]
    outputs = memory.outputs[s]
    held_end, end, limit = memory.ends[:, s, j], cost.ends[s, j], memory.limits[s]
    passing, ended_skips = memory.passing, memory.ended_skips
    reaches, peaks = memory.reaches[s], blocks.peaks
    least, least_up_to = blocks.least, blocks.least_up_to
    lacking, squares, cap = aim
    best, start, peak = np.inf, -1, 0.0
    size, nearest = blocks.size, (j - 1) // blocks.size
    for block in range(nearest, s // size - 1, -1):
        last = min(j, (block + 1) * size) - 1
        at_least = bound[j] - bound[last] - (limit if lacking else 0.0)
        ever = joined(least_up_to[block], at_least, squares)
        if at_least > cap or ever >= best:
            break
        # The peak of the nearest block is not that of the layers before j.
        if block < nearest and joined(least[block], at_least, squares) >= best:
            peak = max(peak, peaks[block])
            continue
        for i in range(last, max(block * size, s) - 1, -1):
            peak = max(peak, reaches[i])
            if before[i] >= best:
                continue
            ended = ended_skips[j] - ended_skips[i]
            leaving = min(passing[j], max(passing[j] - passing[i] + ended, 0.0))
            held = most_held(held_end, held_starts, inputs, min(passing[i], ended), i)
            lack = held + outputs * leaving + peak - limit
            if lacking:
                own = lack
            elif lack > 0:
                continue
            else:
                own = max(end - starts[i], floor[i])
            if own > cap:
                continue
            value = joined(before[i], own, squares)
            if value < best:
                best, start = value, i
    return best, start


@numba.njit(inline="always")
def joined(before, own, squares):
    """Returns the cost of earlier stages together with that of one more."""
    return before + own * own if squares else max(before, own)


@numba.njit(inline="always")
def most_held(ends, starts, inputs, skips, i):
    """Returns the bytes of a stage besides the reach of a layer, at its worst moment.

    Args:
        ends: Bytes up to its end, by moment.
        starts: Bytes up to each start, by moment.
        inputs: Numbers of microbatches, by moment.
        skips: Bytes of the skip connections that end in it, for a microbatch.
        i: Its first layer.
    """
    held = -np.inf
    for k in range(ends.size):
        held = max(held, ends[k] - starts[k, i] + inputs[k] * skips)
    return held
