"""One pass through layers, and the actions around the call of each layer."""

from __future__ import annotations

import inspect
import itertools
import threading
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

import chainer

from chainer_kernels.fusion import folded_layers
from chainer_kernels.fusion.side_inputs import Surroundings
from divisible.layer_list import Layer
from divisible.random_streams import LayerStreams
from divisible.skips import Pop, SkipEnd, side_inputs

if TYPE_CHECKING:
    from chainer_kernels.fusion.fusing import Fusion


#: The shape and the name of the dtype of each input of a layer; ``None`` if some input
#: is not an array.
Signature = Optional[tuple[tuple[tuple[int, ...], str], ...]]


class LayerSeconds(dict[int, list[float]]):
    """The seconds of each forward, by layer.

    Attributes:
        inputs (dict): The signature of the last forward's inputs, by layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[int, Signature] = {}


class _Watch(threading.local):
    #: Records the seconds of layers, within `timed_layers`.
    seconds: LayerSeconds | None = None
    #: The number of the pass. A nested model has the number of the outer one.
    number: int | None = None


_watch = _Watch()
_pass_numbers = itertools.count()


@contextmanager
def timed_layers() -> Iterator[LayerSeconds]:
    """Records the seconds of each forward of this thread within the block, by layer.

    With nested models only the outer one's layers are timed. On a GPU the times are
    those of launches.

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
    last_users: Callable[[], Container[int]] | None = None,
    chains: bool = False,
) -> Any:
    """Passes ``x`` through layers.

    Each layer draws from its own stream of random numbers, marks the functions that it
    adds to the graph, and adds its position to its errors. Ends of skip connections
    store and read their tensors.

    Args:
        layers: The layers.
        start: The position of the first one in the undivided model.
        x: The input of the first one.
        skipped: Tensors for later layers, by the name of the skip connection; changed.
        call: Function that calls a layer, for a position, a layer and its inputs. With
            ``None`` layers are called directly.
        fusion: Runs chains of layers as one function; may be ``None``. Within
            `timed_layers`, layers run one by one.
        is_plain: Returns whether ``call`` only calls the layer at a position.
        last_users: Returns the positions of the layers that are the last ones of the
            undivided model to pop their tensor; called where one pops. By default all
            are.
        chains: Whether neighbouring layers may run as one function, if their class has
            a function ``run_chain``, such as that of :class:`~torch_layers.TorchLayer`.
            Within `timed_layers`, layers run one by one.

    Returns:
        The output of the last layer.
    """

    def enter(next_position: int) -> None:
        nonlocal position
        position = next_position
        streams.enter(position)

    outer = _watch.number
    number = _watch.number = next(_pass_numbers) if outer is None else outer
    signed: set[chainer.FunctionNode] = set()
    try:
        with LayerStreams() as streams:
            places = _Places(layers, start, skipped, is_plain, last_users)
            index = 0
            while index < len(layers):
                position, layer, n_layers = start + index, layers[index], 1
                streams.enter(position)
                try:
                    fused = run_chain = None
                    if chains and _watch.seconds is None:
                        run_chain = getattr(type(layer), "run_chain", None)
                    if run_chain is not None:
                        fused = run_chain(layers, index, position, x, enter)
                    elif fusion is not None and _watch.seconds is None:
                        fused = places.run_fused(fusion, index, x, streams)
                    if fused is not None:
                        n_layers, x = fused
                    elif isinstance(layer, SkipEnd):
                        x = places.run_end(index, x)
                    else:
                        run = _called if _watch.seconds is None else _timed
                        inputs = x if isinstance(x, tuple) else (x,)
                        x = run(call, position, layer, inputs)
                except Exception as error:
                    # Plans use positions of the outermost model. So the position in a
                    # model within a layer is overwritten on the way out.
                    error.layer_position = position
                    raise
                _sign(x, position, number, signed)
                index += n_layers
    finally:
        _watch.number = outer
    return x


class _Places(NamedTuple):
    """The layers of a pass, each of which runs alone or within a chain.

    The attributes are the arguments of :func:`pass_through`.
    """

    layers: Sequence[Layer]
    start: int
    skipped: dict[str, Any]
    is_plain: Callable[[int], bool]
    last_users: Callable[[], Container[int]] | None

    def run_end(self, index: int, x: Any) -> Any:
        """Runs an end of a skip connection, which stores or reads its tensor.

        Args:
            index: Index of the layer that is this end.
            x: Its input, or a tuple of inputs.

        Returns:
            The output of the layer.
        """
        layer = self.layers[index]
        takes = isinstance(layer, Pop) and layer.name in self.skipped
        is_last = takes and self._is_last_user(self.start + index)
        return layer.run(x, self.skipped, is_last)

    def run_fused(
        self, fusion: Fusion, index: int, x: Any, streams: LayerStreams
    ) -> tuple[int, Any] | None:
        """Runs a chain as one function, if one begins at an index.

        Args:
            fusion: Runs chains of layers as one function.
            index: Index of the first layer.
            x: Its input, or a tuple of inputs.
            streams: The random streams of the layers.

        Returns:
            The number of layers that have run, and the output of the last one. ``None``
            if no layer has run.
        """
        layers, position, fused = self.layers, self.start + index, None
        around = Surroundings(
            streams.enter,
            lambda layer: side_inputs(layer, self.skipped),
            # A stashed tensor is also used by a later layer.
            index > 0 and isinstance(layers[index - 1], SkipEnd),
            self.is_plain,
        )
        if self.is_plain(position):
            fused = folded_layers.run(layers, index, x)
        fused = fused or fusion.run(layers, index, position, x, around)
        if fused is not None:
            for place, layer in enumerate(layers[index : index + fused[0]], position):
                if isinstance(layer, SkipEnd) and self._is_last_user(place):
                    del self.skipped[layer.name]
        return fused

    def _is_last_user(self, position: int) -> bool:
        return self.last_users is None or position in self.last_users()


def _sign(
    outputs: Any, position: int, number: int, signed: set[chainer.FunctionNode]
) -> None:
    """Marks the functions that a layer added to the graph with its position.

    `divisible.backward.graph_walk` reads it, to name the layer in errors of backward.

    Args:
        outputs: The outputs of the layer.
        position: Position in the model, which replaces that in a nested model.
        number: The number of this pass. Functions of other passes are not marked:
            they belong to state from step to step, or to another model.
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


def _called(call: Callable | None, position: int, layer: Layer, inputs: tuple) -> Any:
    """Calls a layer."""
    try:
        return call(position, layer, inputs) if call else layer(*inputs)
    except Exception as error:
        _explain(error, position, layer, inputs)
        raise


def _timed(call: Callable | None, position: int, layer: Layer, inputs: tuple) -> Any:
    """Calls a layer, and records its seconds."""
    seconds, _watch.seconds = _watch.seconds, None
    start = time.perf_counter()
    try:
        return _called(call, position, layer, inputs)
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
    """Raises a clearer error if a layer got more inputs than it accepts."""
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
    """Returns how many inputs a layer needs; ``None`` if unknown, or any number.

    A second input with a default is an option, such as the axis of ``L.Linear``.
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
