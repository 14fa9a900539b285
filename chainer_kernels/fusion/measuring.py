"""Measures the gain of fusing a chain."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels.fusion.chains import Chain, ChainTrial

#: Fewest and most runs, and the seconds after which no further run begins. The fastest
#: run counts, since other processes may disturb some. A run before them compiles.
_FEWEST_RUNS, _MOST_RUNS, _SECONDS = 2, 8, 0.1


class FusionChoice(NamedTuple):
    """A measured chain of layers, and whether it is fused.

    Attributes:
        start: Position of the first layer.
        end: Position after the last layer.
        functions: Names of the functions that run forward, for display.
        is_fused: Whether the layers run as one function.
        ms_before: Milliseconds of forward and backward, unfused.
        ms_after: Milliseconds of forward and backward, fused.
        bytes_before: How many bytes are read and written unfused.
        bytes_after: How many bytes are read and written fused.
        largest_difference: Largest absolute difference of outputs and gradients between
            the unfused and the fused run.
        is_exact: Whether both are equal bit for bit, for any inputs.
    """

    start: int
    end: int
    functions: str
    is_fused: bool
    ms_before: float
    ms_after: float
    bytes_before: int
    bytes_after: int
    largest_difference: float
    is_exact: bool


def measured(span: tuple[int, int], chain: Chain, trial: ChainTrial) -> FusionChoice:
    """Times a chain unfused and fused, forward and backward.

    Args:
        span: Positions of the first layer and after the last layer.
        chain: The chain.
        trial: The two ways to run the chain. Each run draws the same random numbers.
            Gradients of parameters are computed, but not stored in the parameters.

    Returns:
        The measurements. ``is_fused`` is true if the fused run was faster.
    """
    state = np.random.get_state(legacy=False)

    def run(call: Callable) -> tuple[float, list[np.ndarray]]:
        np.random.set_state(state)
        variables = [chainer.Variable(x) for x in trial.inputs]
        begin = time.perf_counter()
        y = call(*variables)
        # Both runs allocate the gradient, so its time is counted in both.
        ones = chainer.Variable(np.ones_like(y.array))
        found = chainer.grad([y], [*variables, *trial.parameters], [ones])
        took = time.perf_counter() - begin
        return took, [y.array, *(each.array for each in found if each is not None)]

    ways = trial.unfused, trial.fused
    # Warnings are left to calls of the layers outside of trials.
    with chainer.force_backprop_mode(), np.errstate(all="ignore"):
        # The first run compiles.
        results = [run(call)[1] for call in ways]
        runs: list[list[float]] = []
        begin = time.perf_counter()
        while len(runs) < _FEWEST_RUNS or (
            len(runs) < _MOST_RUNS and time.perf_counter() - begin < _SECONDS
        ):
            runs.append([run(call)[0] for call in ways])
    np.random.set_state(state)
    before, after = map(min, zip(*runs))
    size = results[0][0].nbytes
    return FusionChoice(
        *span,
        " > ".join(chain.program.labels),
        after < before,
        1e3 * before,
        1e3 * after,
        trial.n_before * size,
        trial.n_after * size,
        _largest_difference(*results),
        chain.program.is_exact,
    )


def _largest_difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    pairs = zip(one, other)
    differences = (np.abs(np.where(a == b, 0, a - b)) for a, b in pairs)
    return float(max(np.max(each, initial=0) for each in differences))
