"""The speeds of ranks, by one layer that all of them compute.

The time of a stage alone does not tell a slow host from layers that cost much. So where
no profile says what layers cost, every rank computes the same layer for a moment::

    stage     0     1     2        seconds in a minibatch: 1, 3, 1
    layer 4   on every rank        0.01 s, 0.03 s, 0.01 s: rank 1 is slow
    or                             0.01 s each: the layers of stage 1 cost more

Each rank makes a layer of its own for that, calls it with inputs of the sizes that
there are in training, and drops it. The training goes on as if nothing had been
computed, with the same random numbers.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import chainer
import numpy as np

from divisible import Divisible, deferred_init
from divisible.communication.attempts import on_all_ranks, words_of
from divisible.moved_layers import entangled
from divisible.random_streams import restored_random_state
from divisible.skips import SkipEnd
from pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from divisible.layer_pass import Signature
    from pipeline.rebalancing.layer_costs import SaidOfLayers

# A container stops a process for parts of some 100 ms; a part of the time, the longest
# of which is the most that it may take, shows that. Other processes disturb a part.
_PART, _N_PARTS = 0.1, 12
# A layer whose forward takes longer is taken only if there is no shorter one.
_LONG = 0.25
# Ranks whose seconds differ by less are as fast as each other.
_ALIKE = 0.75


class CommonLayer(NamedTuple):
    """A layer that ranks compute to compare their speeds.

    Attributes:
        position: Its position in the model.
        inputs: Shapes and dtypes of its inputs.
    """

    position: int
    inputs: Signature


class Compared(NamedTuple):
    """The speeds of all ranks.

    Attributes:
        speeds: Relative to the fastest rank; ``None`` where they are not known.
        reason: Why they are not known; empty where they are.
    """

    speeds: list[float] | None
    reason: str = ""


def compare_ranks(
    pipe: Pipeline, build: Callable[[], Divisible], said: Sequence[SaidOfLayers]
) -> Compared:
    """Compares how long one layer takes on all ranks.

    To be called on every rank, between two minibatches.

    Args:
        pipe: The pipeline, with stages in host memory.
        build: Returns the undivided model.
        said: By all ranks, how long forwards of their layers took, and of which inputs.
    """

    def choose() -> tuple[Divisible, CommonLayer]:
        with restored_random_state(), deferred_init():
            model = build()
        layer = choose_layer(model, said)
        if layer is None:
            raise _NotComparableError("no layer has arrays only for its inputs")
        return model, layer

    def measure(model: Divisible, layer: CommonLayer) -> float:
        try:
            return seconds_of(model, layer)
        except Exception as error:
            where = f"layer {layer.position}"
            raise _NotComparableError(f"{where}: {words_of(error)}") from error

    gather = functools.partial(pipe.gather, call="rebalance")
    attempt = functools.partial(on_all_ranks, gather, "", error=_NotComparableError)
    # Code of the model fails as it likes, and may do so on one rank only.
    try:
        model, layer = attempt(choose)
        found = gather(attempt(measure, model, layer))
    except _NotComparableError as error:
        return Compared(None, str(error))
    return Compared(relative_speeds(found))


class _NotComparableError(Exception):
    """A common layer that cannot be computed on some rank."""


def choose_layer(model: Divisible, said: Sequence[SaidOfLayers]) -> CommonLayer | None:
    """Returns the layer whose forward takes longest, if that is not very long.

    Args:
        model: The undivided model.
        said: By all ranks, of their layers.

    Returns:
        ``None`` if no layer can be computed by itself.
    """
    shared = entangled(model)
    seconds: dict[int, float] = {}
    inputs: dict[int, Signature] = {}
    for theirs in said:
        for position, signature in theirs.inputs.items():
            alone = not isinstance(model[position], SkipEnd) and position not in shared
            if signature is not None and alone:
                seconds[position] = theirs.forwards[position]
                inputs[position] = signature
    if not seconds:
        return None
    short = {i: s for i, s in seconds.items() if s <= _LONG}
    chosen = max(short, key=short.get) if short else min(seconds, key=seconds.get)
    return CommonLayer(chosen, inputs[chosen])


def seconds_of(model: Divisible, chosen: CommonLayer) -> float:
    """Returns the seconds of a forward of a layer, made for this.

    Args:
        model: The undivided model, none of whose layers is made; it may not be used
            any more.
        chosen: The layer.
    """
    with restored_random_state(), chainer.no_backprop_mode():
        (layer,) = model.divide(chosen.position, chosen.position + 1)
        inputs = [_input(shape, dtype) for shape, dtype in chosen.inputs]
        if isinstance(layer, chainer.Link):
            _cast(layer, inputs)
        # Sizes the layer, and compiles kernels.
        layer(*inputs)
        return shortest_mean(lambda: layer(*inputs))


def _input(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    # Zeros are labels that there are, and indices of embeddings.
    return np.full(shape, 0.5 if np.dtype(dtype).kind == "f" else 0, dtype)


def _cast(layer: chainer.Link, inputs: Sequence[np.ndarray]) -> None:
    """Gives a layer the dtype of its inputs: the stages may have been cast."""
    dtypes = [x.dtype for x in inputs if x.dtype.kind == "f"]
    for param in layer.params(include_uninit=False) if dtypes else ():
        if param.dtype.kind == "f" and param.dtype != dtypes[0]:
            param.cleargrad()
            param.array = param.array.astype(dtypes[0])


def shortest_mean(
    run: Callable[[], Any],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Returns the seconds of a call: the mean in the part of time with the most calls.

    Args:
        run: The call, which is repeated.
        clock: Returns the time in seconds.

    Example:
        >>> now = iter([0.0, 0.06, 0.12, 0.5, 0.9, 1.3])
        >>> round(shortest_mean(lambda: None, lambda: next(now)), 3)
        0.06
    """
    means = []
    first = start = clock()
    n = 0
    while True:
        run()
        n, now = n + 1, clock()
        if now - start >= _PART:
            means.append((now - start) / n)
            n, start = 0, now
            if now - first >= _PART * _N_PARTS and len(means) > 1:
                return min(means)


def relative_speeds(seconds: Sequence[float]) -> list[float]:
    """Returns speeds relative to the fastest rank, all 1 where they hardly differ.

    Example:
        >>> relative_speeds([0.01, 0.02]), relative_speeds([0.01, 0.011])
        ([1.0, 0.5], [1.0, 1.0])
    """
    speeds = min(seconds) / np.array(seconds)
    return (np.ones_like(speeds) if speeds.min() >= _ALIKE else speeds).tolist()
