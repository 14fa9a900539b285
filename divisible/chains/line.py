r"""Calls in a line: an input of a later call is stashed, and popped there.

::

    x ---- conv ---- relu ---- concat          0 stash('x')      x, for later
      \                       /                 1 conv
       '-- pool -------------'                 2 relu
                                               3 stash('relu')   relu's, for later
                                               4 pop('x', take 1)     x, and not relu's
                                               5 pool
                                               6 pop('relu', take 1 0)
                                               7 concat

The layers keep the order of the chain's calls. So each layer finds its inputs either in
the output of the layer before, or among the stashed values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple

from chainer import Link

from divisible.chains.array_operations import ArrayOperation
from divisible.chains.calls import INPUT, Call, Recording, Value
from divisible.layer_list import Layer
from divisible.skips import pop, stash

#: Functions for which the order of inputs does not matter. Where two inputs are equal,
#: a maximum gives its gradient to the first one.
_COMMUTATIVE = ("Add", "Mul")


class Take:
    """A function that chooses among its arguments, and orders them.

    Args:
        order: Position of the argument for each place of the result.

    Example:
        >>> Take([2, 0])("a", "b", "c"), Take([1])("a", "b")
        (('c', 'a'), 'b')
    """

    def __init__(self, order: Iterable[int]) -> None:
        self._order = tuple(order)
        # A pop prints this name of its joining function.
        self.__qualname__ = repr(self)

    def __call__(self, *values: Any) -> Any:
        """Returns the chosen values: a tuple, or a single value."""
        chosen = tuple(values[i] for i in self._order)
        return chosen if len(chosen) > 1 else chosen[0]

    def __repr__(self) -> str:
        return f"Take({', '.join(map(str, self._order))})"


def line_up(
    recording: Recording, make_layer: Callable[[int, Call], Layer]
) -> list[tuple[Layer, str]]:
    """Returns layers in a line that repeat the recorded calls.

    Args:
        recording (Recording): Calls, whose inputs are outputs of earlier calls.
        make_layer: Function that returns the layer for a position and a call.

    Returns:
        The layers, and for each link its path in the chain.
    """
    names = _skip_names(recording)
    layers: list[tuple[Layer, str]] = [(stash(n), "") for n in names[INPUT].values()]
    for number, call in enumerate(recording.calls):
        layer = make_layer(number, call)
        there = _fetch(recording, number, call.inputs, names)
        if type(call.callee).__name__ in _COMMUTATIVE and there.order == (1, 0):
            there = there._replace(order=(0, 1))
        if len(there.names) == 1 and there.is_pair and not isinstance(layer, Link):
            # The function has these two inputs, so it can join them in the pop.
            layers.append((pop(there.names[0], layer), ""))
        else:
            layers.extend((each, "") for each in there.layers())
            layers.append((layer, call.path))
        layers.extend((stash(name), "") for name in names[number].values())
    there = _fetch(recording, len(recording.calls), recording.outputs, names)
    return layers + [(each, "") for each in there.layers()]


class _Fetched(NamedTuple):
    """The way in which a call gets its inputs.

    Attributes:
        names: Names of the values that are popped, in this order.
        order: Positions of the call's inputs among the values before it.
        n_values: Number of these values.
    """

    names: tuple[str, ...]
    order: tuple[int, ...]
    n_values: int

    @property
    def is_pair(self) -> bool:
        return self.n_values == 2 and self.order == (0, 1)

    def layers(self) -> list[Layer]:
        """Returns the layers that provide the inputs."""
        is_ordered = self.order == tuple(range(self.n_values))
        take = None if is_ordered else Take(self.order)
        if not self.names:
            return [] if take is None else [take]
        return [*map(pop, self.names[:-1]), pop(self.names[-1], take)]


def _fetch(
    recording: Recording,
    number: int,
    inputs: Sequence[Value],
    names: dict[int, dict[int, str]],
) -> _Fetched:
    """Finds the inputs of a call in the previous output and among stashed values."""
    before = number - 1
    there = _outputs(recording, before)
    popped = dict.fromkeys(value.call for value in inputs if value.call != before)
    for producer in popped:
        there += _outputs(recording, producer)
    return _Fetched(
        tuple(names[producer][number] for producer in popped),
        tuple(map(there.index, inputs)),
        len(there),
    )


def _outputs(recording: Recording, number: int) -> list[Value]:
    is_input = number == INPUT
    n = recording.n_inputs if is_input else len(recording.calls[number].shapes)
    return [Value(number, i) for i in range(n)]


def _skip_names(recording: Recording) -> dict[int, dict[int, str]]:
    """Returns, for each call, names of its skips, by the calls at their other ends."""
    users: dict[int, list[int]] = {n: [] for n in range(INPUT, len(recording.calls))}
    takers = [call.inputs for call in recording.calls] + [recording.outputs]
    for number, inputs in enumerate(takers):
        for producer in dict.fromkeys(value.call for value in inputs):
            if producer != number - 1:
                users[producer].append(number)
    names: dict[int, dict[int, str]] = {}
    taken: set[str] = set()
    for producer, numbers in users.items():
        base = "x" if producer == INPUT else _base(recording.calls[producer])
        names[producer] = {number: _unused(base, taken) for number in numbers}
    return names


def _base(call: Call) -> str:
    is_operation = isinstance(call.callee, ArrayOperation)
    name = call.callee.name if is_operation else type(call.callee).__name__.lower()
    return (call.path or name).strip("/").replace("/", "_")


def _unused(base: str, taken: set[str]) -> str:
    candidates = (f"{base}_{i}" for i in itertools.count(2))
    name = next(n for n in itertools.chain([base], candidates) if n not in taken)
    taken.add(name)
    return name
