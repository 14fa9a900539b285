"""One pass through layers: what happens around the call of each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import chainer

from divisible.layer_list import Layer
from divisible.layer_positions import one_pass, sign
from divisible.random_streams import layer_streams
from divisible.skips import SkipEnd


def pass_through(
    layers: Sequence[Layer],
    start: int,
    x: Any,
    skipped: dict[str, Any],
    call: Callable[[int, Layer, tuple], Any],
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

    Returns:
        What the last layer returns.
    """
    signed: set[chainer.FunctionNode] = set()
    with layer_streams() as streams, one_pass() as number:
        for position, layer in enumerate(layers, start):
            streams.enter(position)
            try:
                if isinstance(layer, SkipEnd):
                    x = layer.run(x, skipped)
                else:
                    x = call(position, layer, x if isinstance(x, tuple) else (x,))
            except Exception as error:
                # The outermost model's position is the one plans speak of, so that of
                # a model inside of a layer is overwritten on the way out.
                error.layer_position = position
                raise
            sign(x, position, number, signed)
    return x
