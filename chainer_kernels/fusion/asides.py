"""Layers that take something besides what the layer before them returned.

::

    layers      norm     pop('x', F.add)     relu
    called      norm(h)  pop.join(h, x)      relu(h)
                                      ^
                       x  from aside -'

Such a layer has ``join``, to be called with both, and ``joined_by``: the function that
calls, or ``None`` where both go on as a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

Layer = Callable[..., Any]

#: By the place of a layer in a chain, which of the chain's inputs it takes from aside.
Asides = Mapping[int, Sequence[int]]
NOTHING: Asides = MappingProxyType({})


class Surroundings(NamedTuple):
    """The place of a layer in a list, for whoever runs it and the next ones as one.

    Attributes:
        enter: Called with a position before a layer there draws random numbers.
        aside: Returns what a layer takes besides what the one before it returned, as a
            tuple; ``None`` of layers that take nothing.
        is_shared: Whether something else uses the input as well.
        is_plain: Returns whether a call of the layer at a position is all that is done
            to it there.
    """

    enter: Callable[[int], None] = lambda position: None
    aside: Callable[[Layer], tuple | None] = lambda layer: None
    is_shared: bool = False
    is_plain: Callable[[int], bool] = lambda position: True


def call_each(
    layers: Sequence[Layer],
    inputs: Sequence[Any],
    asides: Asides = NOTHING,
    before: Callable[[int], None] = lambda place: None,
    after: Callable[[int, Any], None] = lambda place, value: None,
) -> Any:
    """Calls layers one by one, each with what the one before returned.

    Args:
        layers: The layers.
        inputs: Those of the first one, and behind them what is taken from aside.
        asides: Who takes what of that.
        before: Called with the place of a layer before that is called.
        after: Called with it, and with what the layer has returned.

    Returns:
        What the last one returns.

    Example:
        >>> call_each([abs, lambda x: x + 1], [-3])
        4
    """
    taken = {i for places in asides.values() for i in places}
    value: Any = tuple(x for i, x in enumerate(inputs) if i not in taken)
    if len(value) == 1:
        (value,) = value
    for place, layer in enumerate(layers):
        before(place)
        if place in asides:
            value = layer.join(value, tuple(inputs[i] for i in asides[place]))
        else:
            value = layer(*value) if isinstance(value, tuple) else layer(value)
        after(place, value)
    return value
