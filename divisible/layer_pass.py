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
from divisible.random_streams import LayerStreams
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
    #: The number of the pass; that of a nested model is the outer one's.
    number: int | None = None


_watch = _Watch()
_pass_numbers = itertools.count()


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
    call: Callable[[int, Layer, tuple], Any] | None = None,
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
        call: Calls a layer, given its position, the layer and its inputs; ``None`` to
            call it with its inputs and do nothing else.
        fusion: What runs chains of layers as one function, if anything does. While
            somebody asks for the seconds of layers, they run one by one.
        is_plain: Returns whether ``call`` does nothing but call the layer there.

    Returns:
        What the last layer returns.
    """
    signed: set[chainer.FunctionNode] = set()
    outer, index = _watch.number, 0
    number = _watch.number = next(_pass_numbers) if outer is None else outer
    try:
        with LayerStreams() as streams:
            while index < len(layers):
                position, layer, n_layers = start + index, layers[index], 1
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
                    elif _watch.seconds is not None:
                        x = _timed(call, position, layer, inputs)
                    else:
                        try:
                            x = (
                                call(position, layer, inputs)
                                if call
                                else layer(*inputs)
                            )
                        except Exception as error:
                            _explain(error, position, layer, inputs)
                            raise
                except Exception as error:
                    # The outermost model's position is the one plans speak of, so that
                    # of a model inside of a layer is overwritten on the way out.
                    error.layer_position = position
                    raise
                _sign(x, position, number, signed)
                index += n_layers
    finally:
        _watch.number = outer
    return x


def _sign(
    outputs: Any, position: int, number: int, signed: set[chainer.FunctionNode]
) -> None:
    """Writes a layer's position on the functions that it added to the graph.

    An error in their backward names the layer then; `divisible.backward.graph_walk`
    reads it.

    Args:
        outputs: What the layer returned.
        position: In the model; it replaces that in a nested one.
        number: The number of this pass. Functions of another one, on whose outputs this
            goes on, are left as they are: state from step to step, or another model.
        signed: The functions of the layers before.
    """
    found = []
    for y in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        if isinstance(y, chainer.Variable):
            found.append(y.creator_node)
    while found:
        function = found.pop()
        if function is None or function in signed:
            continue
        if getattr(function, "layer_pass", number) != number:
            continue
        signed.add(function)
        function.layer_position, function.layer_pass = position, number
        for x in function.inputs:
            found.append(x.creator_node)


def _timed(call: Callable | None, position: int, layer: Layer, inputs: tuple) -> Any:
    """Calls a layer, and records how long it took."""
    seconds, _watch.seconds = _watch.seconds, None
    start = time.perf_counter()
    try:
        return call(position, layer, inputs) if call else layer(*inputs)
    except Exception as error:
        _explain(error, position, layer, inputs)
        raise
    finally:
        _watch.seconds = seconds
        took = time.perf_counter() - start
        seconds.setdefault(position, []).append(took)
        seconds.inputs[position] = _signature(inputs)


def _signature(inputs: tuple) -> Signature:
    if not all(hasattr(x, "shape") and hasattr(x, "dtype") for x in inputs):
        return None
    return tuple((tuple(x.shape), x.dtype.name) for x in inputs)


def _explain(error: Exception, position: int, layer: Layer, inputs: tuple) -> None:
    """Raises an error in other words, if a layer got more inputs than it takes."""
    n_taken = _n_taken(layer)
    if n_taken is None or len(inputs) <= n_taken:
        return
    words = (
        f"layer {position} takes {n_taken} of the {len(inputs)} inputs that it is given"
    )
    if position == 0:
        words += (
            ". Each array of a tuple or a list is an input of its own: give samples as"
            " one array. And a model returns outputs, not a loss: use PipelineUpdater"
            " and PipelineEvaluator where Chainer's own would give it targets as well,"
            " or L.Classifier(model) in one process"
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
