"""The values of a microbatch that a segment holds between forward and backward.

::

    held     from F on    before the backward     costs
    graph    the graph    nothing                 memory for all activations
    inputs   the inputs   the forward again (R)   another forward

Layers that are marked hold inputs, and so do all layers of a microbatch that the
schedule recomputes. What is held lies in memory, in a dictionary of each segment: what
is to lie elsewhere meanwhile takes the dictionary's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import chainer

from divisible.carried_state import is_place
from divisible.communication.signatures import Tensors


class Graph(NamedTuple):
    """A microbatch's graph, from fresh leaf variables to the outputs.

    Attributes:
        inputs: What the first layer was called with.
        skipped: By name what skip connections brought.
        outputs: What the last layer returned, or the loss.
        handed_over: By name what skip connections take.
    """

    inputs: Sequence[Any]
    skipped: Mapping[str, Sequence[Any]]
    outputs: Sequence[Any]
    handed_over: Mapping[str, Sequence[Any]]


class Inputs(NamedTuple):
    """All that it takes to run a microbatch's forward again.

    Attributes:
        inputs: The tensors of the layer before.
        skipped: By name those of skip connections.
        persistents: What the links kept when it first ran.
    """

    inputs: Tensors
    skipped: Mapping[str, Tensors]
    persistents: Persistents


class Persistents:
    """The values that links keep besides parameters, such as running averages.

    Args:
        links: The links.
    """

    def __init__(self, links: Iterable[chainer.Link]) -> None:
        self._values = [
            (link, name, _copy(vars(link)[name]))
            for link in links
            for name in link._persistent
            # Those are changed between minibatches only.
            if not is_place(link, name)
        ]

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Lets a forward find what another one found, and do nothing to what is."""
        # Each link once, whatever it keeps.
        present = Persistents({id(link): link for link, _, _ in self._values}.values())
        self._restore()
        try:
            yield
        finally:
            present._restore()

    def _restore(self) -> None:
        for link, name, value in self._values:
            there = vars(link)[name]
            if isinstance(there, chainer.get_array_types()) and value is not None:
                # In place, because others may hold the array.
                there[...] = value
            else:
                vars(link)[name] = value


def _copy(value: Any) -> Any:
    is_array = isinstance(value, chainer.get_array_types())
    return value.copy() if is_array else value
