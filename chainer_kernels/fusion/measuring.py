"""The gain of fusing a chain, measured once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels.fusion.generated import Compiled
from chainer_kernels.fusion.headed import HeadedLoops

#: Of so many runs the fastest counts; the one before them compiles.
_N_RUNS = 2


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


def measured(
    span: tuple[int, int],
    compiled: Compiled | HeadedLoops,
    unfused: Callable[..., chainer.Variable],
    fused: Callable[..., chainer.Variable],
    inputs: Sequence[np.ndarray],
    parameters: Sequence[chainer.Variable] = (),
) -> Choice:
    """Runs a chain both ways, forward and backward, and says which one is faster.

    Args:
        span: The positions of its first layer and after its last one.
        compiled: The chain.
        unfused: Runs the layers one by one, on variables.
        fused: Runs them as one function.
        inputs: What the first layer is given. Random numbers are drawn, alike in each
            run.
        parameters: What has gradients besides. They are computed, and not left there.
    """
    state = np.random.get_state(legacy=False)

    def run(chain: Callable) -> tuple[float, list[np.ndarray]]:
        np.random.set_state(state)
        variables = [chainer.Variable(x) for x in inputs]
        begin = time.perf_counter()
        y = chain(*variables)
        found = chainer.grad([y], [*variables, *parameters], [ones])
        took = time.perf_counter() - begin
        return took, [y.array, *(each.array for each in found if each is not None)]

    ones = chainer.Variable(np.ones_like(inputs[0]))
    # The layers have warned already, or will, where it is not a trial.
    with chainer.force_backprop_mode(), np.errstate(all="ignore"):
        # The first run compiles.
        results = [run(chain)[1] for chain in (unfused, fused)]
        runs = [[run(c)[0] for c in (unfused, fused)] for _ in range(_N_RUNS)]
    np.random.set_state(state)
    before, after = map(min, zip(*runs))
    size = inputs[0].nbytes
    n_before, n_after = _n_arrays(compiled)
    return Choice(
        *span,
        " > ".join(compiled.program.labels),
        after < before,
        1e3 * before,
        1e3 * after,
        n_before * size,
        n_after * size,
        _largest_difference(*results),
        compiled.program.is_exact,
    )


def _n_arrays(compiled: Compiled | HeadedLoops) -> tuple[int, int]:
    """Returns how many arrays are read and written, one by one and fused."""
    steps = compiled.program.steps
    before = sum(len(s.operands) + len(s.arrays) + 1 for s in steps)
    if isinstance(compiled, HeadedLoops):
        return before + compiled.N_ARRAYS_OF_HEAD, compiled.n_arrays
    loops = [compiled.forward, *compiled.backward]
    return before, sum(len(each.reads) + len(each.writes) for each, _ in loops)


def _largest_difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    pairs = zip(one, other)
    differences = (np.abs(np.where(a == b, 0, a - b)) for a, b in pairs)
    return float(max(np.max(each, initial=0) for each in differences))
