"""One pass through layers: what happens around the call of each of them."""

from __future__ import annotations

import inspect
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Optional

import chainer

from chainer_kernels.fusion import folded_layers
from chainer_kernels.fusion.asides import Surroundings
from divisible.layer_list import Layer
from divisible.random_streams import layer_streams
from divisible.skips import SkipEnd, aside

if TYPE_CHECKING:
    from chainer_kernels.fusion.fusing import Fusion


#: The shape and the name of the dtype of each input of a layer; ``None`` if one of them
#: is no array.
Signature = Optional[tuple[tuple[tuple[int, ...], str], ...]]


class LayerSeconds(dict[int, list[float]]):
    """The seconds of each forward by layer.

    Attributes:
        inputs (dict): By layer the signature of the last forward's inputs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[int, Signature] = {}


class _Watch(threading.local):
    #: Where the seconds of layers are noted, while somebody asks for them.
    seconds: LayerSeconds | None = None


_watch = _Watch()


@contextmanager
def timed_layers() -> Iterator[LayerSeconds]:
    """Notes, while a block runs, the seconds of each forward by layer in this thread.

    Of nested models the outer one's layers count. On a GPU the times are of launches.

    Example:
        >>> from divisible import Divisible
        >>> with timed_layers() as seconds:
        ...     _ = Divisible(abs, abs)(-1.0)
        >>> sorted(seconds)
        [0, 1]
    """
    before, _watch.seconds = _watch.seconds, LayerSeconds()
    try:
        yield _watch.seconds
    finally:
        _watch.seconds = before


def pass_through(
    layers: Sequence[Layer],
    start: int,
    x: Any,
    skipped: dict[str, Any],
    call: Callable[[int, Layer, tuple], Any],
    fusion: Fusion | None = None,
    is_plain: Callable[[int], bool] = lambda position: True,
) -> Any:
    """Passes ``x`` through layers.

    Each layer draws from its own stream of random numbers, signs the functions that it
    adds to the graph, and gives its position to what it raises. Ends of skip
    connections hand over and take.

    Args:
        layers: The layers.
        start: The position of the first one in the undivided model.
        x: The input of the first one.
        skipped: What is on its way past layers, by name; is changed.
        call: Calls a layer, given its position, the layer and its inputs.
        fusion: What runs chains of layers as one function, if anything does. While
            somebody asks for the seconds of layers, they run one by one.
        is_plain: Returns whether ``call`` does nothing but call the layer there.

    Returns:
        What the last layer returns.
    """
    signed: set[chainer.FunctionNode] = set()
    with layer_streams() as streams, _one_pass() as number:
        index = 0
        while index < len(layers):
            position, layer = start + index, layers[index]
            n_layers = 1
            streams.enter(position)
            inputs = x if isinstance(x, tuple) else (x,)
            try:
                fused = None
                if fusion is not None and _watch.seconds is None:
                    around = Surroundings(
                        streams.enter,
                        lambda layer: aside(layer, skipped),
                        # What was just stashed is used further behind as well.
                        index > 0 and isinstance(layers[index - 1], SkipEnd),
                        is_plain,
                    )
                    if is_plain(position):
                        fused = folded_layers.run(layers, index, x)
                    fused = fused or fusion.run(layers, index, position, x, around)
                if fused is not None:
                    n_layers, x = fused
                    for run in layers[index : index + n_layers]:
                        if isinstance(run, SkipEnd):
                            del skipped[run.name]
                elif isinstance(layer, SkipEnd):
                    x = layer.run(x, skipped)
                elif _watch.seconds is None:
                    x = _explained(call, position, layer, inputs)
                else:
                    x = _timed(call, position, layer, inputs)
            except Exception as error:
                # The outermost model's position is the one plans speak of, so that of
                # a model inside of a layer is overwritten on the way out.
                error.layer_position = position
                raise
            _sign(x, position, number, signed)
            index += n_layers
    return x


def _timed(call: Callable, position: int, layer: Layer, inputs: tuple) -> Any:
    """Calls a layer, and notes how long it took."""
    seconds, _watch.seconds = _watch.seconds, None
    start = time.perf_counter()
    try:
        return _explained(call, position, layer, inputs)
    finally:
        _watch.seconds = seconds
        took = time.perf_counter() - start
        seconds.setdefault(position, []).append(took)
        seconds.inputs[position] = _signature(inputs)


def _signature(inputs: tuple) -> Signature:
    if not all(hasattr(x, "shape") and hasattr(x, "dtype") for x in inputs):
        return None
    return tuple((tuple(x.shape), x.dtype.name) for x in inputs)


def _explained(call: Callable, position: int, layer: Layer, inputs: tuple) -> Any:
    """Calls a layer; says so if it fails because it got more inputs than it takes."""
    try:
        return call(position, layer, inputs)
    except Exception as error:
        n_taken = _n_taken(layer)
        if n_taken is None or len(inputs) <= n_taken:
            raise
        words = (
            f"layer {position} takes {n_taken} of the {len(inputs)} inputs that it is"
            f" given"
        )
        if position == 0:
            words += (
                ". Each array of a tuple or a list is an input of its own: give samples"
                " as one array. And a model returns outputs, not a loss: use"
                " PipelineUpdater and PipelineEvaluator where Chainer's own would give"
                " it targets as well, or L.Classifier(model) in one process"
            )
        raise TypeError(words) from error


def _n_taken(layer: Layer) -> int | None:
    """Returns how many inputs a layer needs, if it says so and takes no more of them.

    A second one that may be left out is an option, such as the axis of ``L.Linear``.
    """
    try:
        function = getattr(layer, "forward", layer)
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    return sum(
        p.kind is not p.KEYWORD_ONLY and p.default is p.empty for p in parameters
    )


class _Passes(threading.local):
    number: int | None = None


_passes = _Passes()
_pass_numbers = itertools.count()


@contextmanager
def _one_pass() -> Iterator[int]:
    """Numbers the passes through models; that of a nested model is the outer one's."""
    if _passes.number is not None:
        yield _passes.number
        return
    _passes.number = next(_pass_numbers)
    try:
        yield _passes.number
    finally:
        _passes.number = None


def _sign(
    outputs: Any, position: int, number: int, signed: set[chainer.FunctionNode]
) -> None:
    """Writes a layer's position on the functions that it added to the graph.

    An error in their backward can then name the layer;
    :mod:`divisible.backward.graph_walk` reads it.

    Args:
        outputs: Of the layer.
        position: In the model; it replaces that in a nested one.
        number: Of this pass. Functions of another one, on whose outputs this goes on,
            are left as they are: state from step to step, or another model.
        signed: The functions of the layers before.
    """
    outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    found = [y.creator_node for y in outputs if isinstance(y, chainer.Variable)]
    while found:
        function = found.pop()
        if function is None or function in signed:
            continue
        if getattr(function, "layer_pass", number) != number:
            continue
        signed.add(function)
        function.layer_position, function.layer_pass = position, number
        found += [x.creator_node for x in function.inputs]
