"""The speeds of ranks, from one layer that all of them compute.

The time of a stage does not tell a slow host from costly layers. So if no profile has
the costs of layers, every rank computes the same layer for a moment::

    stage     0     1     2        seconds in a minibatch: 1, 3, 1
    layer 4   on every rank        0.01 s, 0.03 s, 0.01 s: rank 1 is slow
    or                             0.01 s each: the layers of stage 1 cost more

Each rank makes a layer of its own for this, calls it with inputs of the sizes in
training, and drops it. Training continues with the same random numbers as without the
comparison.
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

# A container may stop a process for parts of some 100 ms. The longest of these parts of
# time is the most that a measurement may lose. Other processes disturb some parts.
_PART, _N_PARTS = 0.1, 12
# A layer with a longer forward is chosen only if there is no shorter one.
_LONG = 0.25
# Ranks are equally fast if the ratio of their seconds is above this.
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
        speeds: Speeds relative to the fastest rank; ``None`` if they are not known.
        reason: Reason why they are not known; empty if they are.
    """

    speeds: list[float] | None
    reason: str = ""


def compare_ranks(
    pipe: Pipeline, build: Callable[[], Divisible], said: Sequence[SaidOfLayers]
) -> Compared:
    """Compares the seconds that one layer takes on all ranks.

    All ranks must call it, between two minibatches.

    Args:
        pipe: The pipeline, with stages in host memory.
        build: Returns the undivided model.
        said: Measurements of all ranks: the seconds and the inputs of their layers'
            forwards.
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

    gather = functools.partial(pipe.internals.gather, call="rebalance")
    attempt = functools.partial(on_all_ranks, gather, "", error=_NotComparableError)
    # The model's code may raise any error, and perhaps on one rank only.
    try:
        model, layer = attempt(choose)
        found = gather(attempt(measure, model, layer))
    except _NotComparableError as error:
        return Compared(None, str(error))
    return Compared(relative_speeds(found))


class _NotComparableError(Exception):
    """The common layer cannot be computed on some rank."""


def choose_layer(model: Divisible, said: Sequence[SaidOfLayers]) -> CommonLayer | None:
    """Returns the layer with the longest forward that is not very long.

    Args:
        model: The undivided model.
        said: Measurements of all ranks' layers.

    Returns:
        ``None`` if no layer can be computed on its own.
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
    """Returns the seconds of a layer's forward; makes the layer for this.

    Args:
        model: The undivided model without its layers' arrays; not usable afterwards.
        chosen: The layer.
    """
    with restored_random_state(), chainer.no_backprop_mode():
        (layer,) = model.divide(chosen.position, chosen.position + 1)
        inputs = [_input(shape, dtype) for shape, dtype in chosen.inputs]
        if isinstance(layer, chainer.Link):
            _cast(layer, inputs)
        # The first call sizes the layer, and compiles kernels.
        layer(*inputs)
        return shortest_mean(lambda: layer(*inputs))


def _input(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    # Zero is a valid class label, and a valid index of an embedding.
    return np.full(shape, 0.5 if np.dtype(dtype).kind == "f" else 0, dtype)


def _cast(layer: chainer.Link, inputs: Sequence[np.ndarray]) -> None:
    """Casts a layer to the dtype of its inputs, because stages may be cast."""
    dtypes = [x.dtype for x in inputs if x.dtype.kind == "f"]
    for param in layer.params(include_uninit=False) if dtypes else ():
        if param.dtype.kind == "f" and param.dtype != dtypes[0]:
            param.cleargrad()
            param.array = param.array.astype(dtypes[0])


def shortest_mean(
    run: Callable[[], Any],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Returns the mean seconds of a call, in the part of time with the most calls.

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
    """Returns speeds relative to the fastest rank; all 1 if they hardly differ.

    Example:
        >>> relative_speeds([0.01, 0.02]), relative_speeds([0.01, 0.011])
        ([1.0, 0.5], [1.0, 1.0])
    """
    speeds = min(seconds) / np.array(seconds)
    return (np.ones_like(speeds) if speeds.min() >= _ALIKE else speeds).tolist()
