"""Layers with side inputs: inputs besides the output of the previous layer.

::

    layers      norm     pop('x', F.add)     relu
    called      norm(h)  pop.join(h, x)      relu(h)
                                      ^
                       x  side input -'

Such a layer has a method ``join``, which is called with the previous output and the
side inputs. Its attribute ``joined_by`` is the function that ``join`` calls, or
``None`` where ``join`` returns all of them as a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

Layer = Callable[..., Any]

#: Indexes of a layer's side inputs among the inputs of the chain, by the layer's place
#: in the chain.
SideInputs = Mapping[int, Sequence[int]]
NOTHING: SideInputs = MappingProxyType({})


class Surroundings(NamedTuple):
    """The context of a layer in a list, for running a chain that begins there.

    Attributes:
        enter: Called with the position of a layer before the layer draws random
            numbers.
        side_inputs: Returns a layer's side inputs as a tuple, or ``None`` for a layer
            without side inputs.
        is_shared: Whether another layer uses the chain's input as well.
        is_plain: Returns whether the layer at a position is only called, without
            other work around the call.
    """

    enter: Callable[[int], None] = lambda position: None
    side_inputs: Callable[[Layer], tuple | None] = lambda layer: None
    is_shared: bool = False
    is_plain: Callable[[int], bool] = lambda position: True


def call_each(
    layers: Sequence[Layer],
    inputs: Sequence[Any],
    side_inputs: SideInputs = NOTHING,
    before: Callable[[int], None] = lambda place: None,
    after: Callable[[int, Any], None] = lambda place, value: None,
) -> Any:
    """Calls layers one by one, each with the output of the previous layer.

    Args:
        layers: The layers.
        inputs: Inputs of the first layer, followed by side inputs of other layers.
        side_inputs: Indexes of side inputs in ``inputs``, by the place of their layer.
        before: Called with the place of a layer before each call.
        after: Called with the place and the output of a layer after each call.

    Returns:
        The output of the last layer.

    Example:
        >>> call_each([abs, lambda x: x + 1], [-3])
        4
    """
    taken = {i for places in side_inputs.values() for i in places}
    value: Any = tuple(x for i, x in enumerate(inputs) if i not in taken)
    if len(value) == 1:
        (value,) = value
    for place, layer in enumerate(layers):
        before(place)
        if place in side_inputs:
            value = layer.join(value, tuple(inputs[i] for i in side_inputs[place]))
        else:
            value = layer(*value) if isinstance(value, tuple) else layer(value)
        after(place, value)
    return value
