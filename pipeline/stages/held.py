"""The values of a microbatch that a segment holds between forward and backward.

::

    held     from F on    before the backward     costs
    graph    the graph    nothing                 memory for all activations
    inputs   the inputs   the forward again (R)   another forward

Layers that are marked hold inputs, and so do all layers of a microbatch that the
schedule recomputes. Each segment has a dictionary of them in memory. A store outside
memory takes entries out of this dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import chainer
import numpy as np

from divisible.carried_state import is_place
from divisible.communication.signatures import Tensors


class Graph(NamedTuple):
    """A microbatch's graph, from fresh leaf variables to the outputs.

    Attributes:
        inputs: Arguments of the first layer.
        skipped: Values that skip connections brought, by name.
        outputs: Return values of the last layer, or the loss.
        handed_over: Values that skip connections take, by name.
    """

    inputs: Sequence[Any]
    skipped: Mapping[str, Sequence[Any]]
    outputs: Sequence[Any]
    handed_over: Mapping[str, Sequence[Any]]


class Inputs(NamedTuple):
    """The values from which a microbatch's forward can run again.

    Attributes:
        inputs: Tensors of the layer before.
        skipped: Tensors that skip connections brought, by name.
        persistents: Persistent values of the links when the forward first ran.
    """

    inputs: Tensors
    skipped: Mapping[str, Tensors]
    persistents: Persistents


class Persistents:
    """The persistent values of links besides parameters, such as running averages.

    Args:
        links: Links whose values to copy.
    """

    def __init__(self, links: Iterable[chainer.Link]) -> None:
        self._values = [
            (link, name, _copy(vars(link)[name]))
            for link in links
            for name in link._persistent
            # Declared states change between minibatches only.
            if not is_place(link, name)
        ]

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Returns a context in which links have the copied values."""
        # One copy per link, however many values it has.
        present = Persistents({id(link): link for link, _, _ in self._values}.values())
        self.restore()
        try:
            yield
        finally:
            present.restore()

    def are_there(self) -> bool:
        """Returns whether the links have the copied values."""
        return all(
            type(there := vars(link)[name]) is type(value)
            and bool(np.all(there == value))
            for link, name, value in self._values
        )

    def restore(self) -> None:
        """Gives the links the copied values."""
        for link, name, value in self._values:
            there = vars(link)[name]
            if isinstance(there, chainer.get_array_types()) and value is not None:
                # In place, because others may refer to the array.
                there[...] = value
            else:
                vars(link)[name] = value


def _copy(value: Any) -> Any:
    is_array = isinstance(value, chainer.get_array_types())
    return value.copy() if is_array else value
