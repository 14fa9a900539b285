r"""Calls in a line: what a later call needs is stashed, and popped there.

::

    x ---- conv ---- relu ---- concat          0 stash('x')      x, for later
      \                       /                 1 conv
       '-- pool -------------'                 2 relu
                                               3 stash('relu')   relu's, for later
                                               4 pop('x', take 1)     x, and not relu's
                                               5 pool
                                               6 pop('relu', take 1 0)
                                               7 concat

Calls are made in the order in which the chain made them, so each layer finds what it
needs either in what the layer before returned, or among what was stashed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple

from chainer import Link

from divisible.chains.calls import INPUT, Call, Recording, Value
from divisible.layer_list import Layer
from divisible.skips import pop, stash

#: Functions that do not mind the order of their inputs.
_COMMUTATIVE = ("Add", "Mul", "Maximum", "Minimum")


class Take:
    """A function that chooses among its arguments, and orders them.

    Args:
        order: Which argument comes at which place.

    Example:
        >>> Take([2, 0])("a", "b", "c"), Take([1])("a", "b")
        (('c', 'a'), 'b')
    """

    def __init__(self, order: Iterable[int]) -> None:
        self._order = tuple(order)
        # By this a pop prints what joins.
        self.__qualname__ = repr(self)

    def __call__(self, *values: Any) -> Any:
        """Returns what was chosen: a tuple, unless it is one."""
        chosen = tuple(values[i] for i in self._order)
        return chosen if len(chosen) > 1 else chosen[0]

    def __repr__(self) -> str:
        return f"Take({', '.join(map(str, self._order))})"


def line_up(
    recording: Recording, make_layer: Callable[[int, Call], Layer]
) -> list[tuple[Layer, str]]:
    """Returns layers that do in a line what was recorded.

    Args:
        recording (Recording): Calls, each of what earlier calls made.
        make_layer: Returns the layer that makes a call, of a position and a call.

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
            # The function takes the two, so it is what joins them.
            layers.append((pop(there.names[0], layer), ""))
        else:
            layers.extend((each, "") for each in there.layers())
            layers.append((layer, call.path))
        layers.extend((stash(name), "") for name in names[number].values())
    there = _fetch(recording, len(recording.calls), (recording.output,), names)
    return layers + [(each, "") for each in there.layers()]


class _Fetched(NamedTuple):
    """How what a call takes comes to it.

    Attributes:
        names: What is popped, in this order.
        order: What the call takes of all that is there then.
        n_values: How much is there then.
    """

    names: tuple[str, ...]
    order: tuple[int, ...]
    n_values: int

    @property
    def is_pair(self) -> bool:
        return self.n_values == 2 and self.order == (0, 1)

    def layers(self) -> list[Layer]:
        """Returns the layers that fetch it."""
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
    """Finds what a call takes in what is there, and in what was stashed for it."""
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
    """Names, for each call, the skips from it, by the calls that they go to."""
    users: dict[int, list[int]] = {n: [] for n in range(INPUT, len(recording.calls))}
    takers = [call.inputs for call in recording.calls] + [(recording.output,)]
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
    return (
        (call.path or type(call.callee).__name__.lower()).strip("/").replace("/", "_")
    )


def _unused(base: str, taken: set[str]) -> str:
    candidates = (f"{base}_{i}" for i in itertools.count(2))
    name = next(n for n in itertools.chain([base], candidates) if n not in taken)
    taken.add(name)
    return name
