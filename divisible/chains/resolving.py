"""The values between the noted calls of a forward.

A variable is identified by its node in the graph, and an array by its memory. An array
that is neither an input nor an output of a call may be a constant, as far as one run
can show. Whether it is one is decided in :mod:`~divisible.chains.constants`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np
from chainer import Variable

from divisible.chains.array_operations import ArrayOperation
from divisible.chains.calls import (
    INPUT,
    Call,
    ChainError,
    Constant,
    Recording,
    Shape,
    Value,
    title,
)
from divisible.chains.places import Place
from divisible.chains.recording import Noted, Run
from divisible.chains.returned import returned


def resolve(chain: chainer.Chain, run: Run) -> Recording:
    """Finds the calls that made the inputs of other calls.

    Args:
        chain (chainer.Chain): The chain.
        run (Run): A run of its forward.

    Raises:
        ChainError: If a call cannot be repeated from the values in the graph.
    """
    resolver = _Resolver(chain, run.given)
    for each in run.noted:
        resolver.add(each)
    outputs = resolver.outputs(run.result)
    return _used(resolver.calls, outputs, tuple(x.shape for x in run.given))


class _Resolver:
    def __init__(self, chain: chainer.Chain, given: Sequence[Any]) -> None:
        self.calls: list[Call] = []
        self._params = {id(param.node): path for path, param in chain.namedparams()}
        self._weights = {
            path: param.array
            for path, param in chain.namedparams()
            if param.array is not None
        }
        # Values by node, and by memory of arrays. The noted calls keep both alive.
        self._nodes: dict[int, Value] = {}
        self._arrays: dict[tuple, Value] = {}
        self._registered: dict[tuple, Any] = {}
        # Arrays that were changed in place, and memory in which another one was.
        self._changed: list[Any] = []
        self._outdated: set[tuple] = set()
        for i, x in enumerate(given):
            self._register(x, Value(INPUT, i))
            self._register(chainer.as_array(x), Value(INPUT, i))

    def add(self, noted: Noted) -> None:
        """Adds a call behind the constants that it reads."""
        name = title(noted.callee, noted.path)
        reads = f"{name} reads"
        operation = noted.callee if isinstance(noted.callee, ArrayOperation) else None
        if operation is not None and operation.completes:
            self._outdated.discard(_memory(noted.inputs[0]))
        values = list(noted.inputs)
        if noted.ran is not None:
            # The graph has the node of an input, and of an array a new one.
            nodes = noted.ran.inputs
            if nodes is None:
                raise ChainError(
                    f"what {name} returns is cut from the graph, as by"
                    f" unchain_backward(): put that into the forward of a link of its"
                    f" own",
                    noted.place,
                )
            values[: len(nodes)] = zip(nodes, values)
        inputs = tuple([self._value(value, reads, noted.place) for value in values])
        if not inputs:
            raise ChainError(f"{name} is called without an input", noted.place)
        outputs = noted.outputs
        if noted.ran is not None:
            # An output that no call used has no node any more.
            outputs = tuple(y() for y in noted.ran.outputs)
        for i, y in enumerate(outputs):
            self._register(y, Value(len(self.calls), i))
        if operation is not None and operation.in_place:
            self._outdate(outputs[0])
        shapes = tuple(None if y is None else y.shape for y in outputs)
        self.calls.append(Call(noted.callee, noted.path, inputs, shapes, noted.place))

    def outputs(self, result: Any) -> tuple[Value, ...]:
        """Returns the values that the forward returns."""
        found = returned(result)
        for y in found:
            if not isinstance(y, Variable):
                inner = "" if y is result else f" with a {type(y).__name__} in it"
                raise ChainError(
                    f"forward returns a {type(result).__name__}{inner}, and a model"
                    f" returns one variable, or several, which all go into the loss:"
                    f" give a forward= that returns the last outputs, such as"
                    f" forward=lambda x: chain(x)[0]"
                )
        return tuple(self._value(y, "forward returns", None) for y in found)

    def _register(self, y: Any, value: Value) -> None:
        if y is None:
            return
        if isinstance(y, chainer.get_array_types()):
            key = _memory(y)
            self._arrays[key] = value
            self._registered[key] = y
            self._outdated.discard(key)
        else:
            node = y.node if isinstance(y, Variable) else y
            self._nodes[id(node)] = value

    def _outdate(self, changed: np.ndarray) -> None:
        """Records which arrays a change in place has changed as well."""
        self._changed.append(changed)
        own = _memory(changed)
        for key, array in self._registered.items():
            if key != own and np.may_share_memory(array, changed):
                self._outdated.add(key)

    def _is_outdated(self, array: Any) -> bool:
        key = _memory(array)
        if key in self._arrays:
            return key in self._outdated
        return isinstance(array, np.ndarray) and any(
            np.may_share_memory(array, each) for each in self._changed
        )

    def _weight(self, array: Any) -> str | None:
        """Returns the path of the parameter of which an array has memory."""
        for path, weight in self._weights.items():
            if isinstance(array, np.ndarray) and isinstance(weight, np.ndarray):
                if np.may_share_memory(array, weight):
                    return path
            elif _memory(array) == _memory(weight):
                return path
        return None

    def _value(self, given: Any, who: str, place: Place | None) -> Value:
        """Finds a variable, an array, or a pair of a node and its array."""
        node, array = given if isinstance(given, tuple) else (None, given)
        is_variable = isinstance(array, Variable)
        if is_variable:
            node, array = array.node, array.array
        found = self._nodes.get(id(node))
        path = self._params.get(id(node))
        if found is None and path is None:
            if self._is_outdated(array):
                raise ChainError(
                    f"{who} an array of shape {array.shape} that a change in place of"
                    f" another one has changed, as of a part of it: change the array"
                    f" itself, as by y[:, 0] *= 2 for part *= 2",
                    place,
                )
            found = self._arrays.get(_memory(array))
            path = None if found is not None else self._weight(array)
        if path is not None:
            raise ChainError(
                f"{who} the parameter {path} outside of a call of the link that has it:"
                f" call the link itself (not its forward), or put the parameter and"
                f" what reads it into a link of their own. Two links may have one"
                f" parameter, as by self.out.W = self.embed.W in init_scope()",
                place,
            )
        if found is not None:
            return found
        if node is not None and node.creator_node is not None:
            raise unknown(who, array, place)
        constant = Call(Constant(array, is_variable), "", (), (array.shape,), place)
        self.calls.append(constant)
        return Value(len(self.calls) - 1, 0)


def unknown(who: str, array: Any, place: Place | None) -> ChainError:
    """Returns the error of an array that no layer makes."""
    return ChainError(
        f"{who} an array of shape {array.shape} that is neither the input nor what a"
        f" link or a function has returned, and no constant, as random numbers are"
        f" none: compute it by Chainer's functions, or in the forward of a link of its"
        f" own",
        place,
    )


def _memory(array: Any) -> tuple:
    """Returns a key for the elements of an array: equal for views of all of it."""
    if isinstance(array, chainer.backends.cuda.ndarray):
        address = array.data.ptr
    else:
        address = array.ctypes.data
    return address, array.shape, array.strides, array.dtype.str


def _used(
    calls: list[Call], outputs: tuple[Value, ...], shapes: tuple[Shape, ...]
) -> Recording:
    """Leaves out functions on which the outputs do not depend."""
    used, open_values = set(), list(outputs)
    while open_values:
        number = open_values.pop().call
        if number != INPUT and number not in used:
            used.add(number)
            open_values.extend(calls[number].inputs)
    renumbered = {INPUT: INPUT}
    renumbered.update((number, i) for i, number in enumerate(sorted(used)))

    def moved(value: Value) -> Value:
        return Value(renumbered[value.call], value.output)

    kept = [calls[number] for number in sorted(used)]
    kept = [call._replace(inputs=tuple(map(moved, call.inputs))) for call in kept]
    unused = [c for n, c in enumerate(calls) if n not in used and c.path]
    return Recording(tuple(kept), tuple(map(moved, outputs)), shapes, tuple(unused))
