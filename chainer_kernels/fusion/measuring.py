"""The gain of fusing a chain, measured once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels.fusion.chains import Chain, Trial

#: Of so many runs the fastest counts; the one before them compiles. Something else may
#: run on the machine, so there are more where they are over soon.
_FEWEST_RUNS, _MOST_RUNS, _SECONDS = 2, 8, 0.1


class Choice(NamedTuple):
    """A chain of layers, one by one and as one function.

    Attributes:
        start: The position of the first layer.
        end: The position after the last one.
        functions: What they compute forward, for people.
        is_fused: Whether they run as one function.
        ms_before: Milliseconds of forward and backward, one by one.
        ms_after: The same as one function.
        bytes_before: How many bytes the functions read and write, one by one.
        bytes_after: The same as one function.
        largest_difference: Between the two, of outputs and gradients.
        is_exact: Whether there is none for any inputs.
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


def measured(span: tuple[int, int], chain: Chain, trial: Trial) -> Choice:
    """Runs a chain both ways, forward and backward, and says which one is faster.

    Args:
        span: The positions of its first layer and after its last one.
        chain: The chain.
        trial: What is compared. Random numbers are drawn, alike in each run; gradients
            of parameters are computed, and not left there.
    """
    state = np.random.get_state(legacy=False)

    def run(call: Callable) -> tuple[float, list[np.ndarray]]:
        np.random.set_state(state)
        variables = [chainer.Variable(x) for x in trial.inputs]
        begin = time.perf_counter()
        y = call(*variables)
        # Its allocation is a part of either run.
        ones = chainer.Variable(np.ones_like(y.array))
        found = chainer.grad([y], [*variables, *trial.parameters], [ones])
        took = time.perf_counter() - begin
        return took, [y.array, *(each.array for each in found if each is not None)]

    ways = trial.unfused, trial.fused
    # The layers have warned already, or will, where it is not a trial.
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
    return Choice(
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
