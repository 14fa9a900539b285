"""The functions of a graph, without running them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import chainer
from chainer import variable


def parameter_of(x: variable.VariableNode) -> chainer.Parameter | None:
    """Returns the parameter that a node stands for; ``None`` for other nodes."""
    owner = x.get_variable_or_none()
    return owner if isinstance(owner, chainer.Parameter) else None


def functions_behind(outputs: Iterable[Any]) -> list[chainer.FunctionNode]:
    """Returns the functions of the graph behind some outputs, each once.

    Args:
        outputs: The values that a forward returned. Only variables are followed.
    """
    functions: dict[chainer.FunctionNode, None] = {}
    found = [y.creator_node for y in outputs if isinstance(y, chainer.Variable)]
    while found:
        function = found.pop()
        if function is not None and function not in functions:
            functions[function] = None
            for x in function.inputs:
                found.append(x.creator_node)
    return list(functions)


def weight_functions(
    outputs: Sequence[chainer.Variable],
) -> frozenset[chainer.FunctionNode]:
    """Returns the functions that compute a value from parameters alone."""
    weights: set[chainer.FunctionNode] = set()
    for function in sorted(functions_behind(outputs), key=operator.attrgetter("rank")):
        for x in function.inputs:
            is_weight = (
                isinstance(x.get_variable_or_none(), chainer.Parameter)
                if x.creator_node is None
                else x.creator_node in weights
            )
            if not is_weight:
                break
        else:
            weights.add(function)
    return frozenset(weights)


def arrays_of(function: chainer.FunctionNode) -> Iterator[Any]:
    """Yields the arrays that a function keeps for its backward, some of them None.

    These are the inputs and outputs that it retains, parameters included; arrays that
    it has as attributes, such as the mask of dropout; and those of another library.

    Args:
        function: Function of a graph.
    """
    yield from (x.data for x in function.inputs)
    yield from function._retained_output_data or ()
    yield from _arrays_in(tuple(vars(function).values()))
    yield from kept_elsewhere(function)
    if isinstance(function, chainer.function.FunctionAdapter):
        yield from _arrays_in(tuple(vars(function.function).values()))


def kept_elsewhere(function: Any) -> Iterator[Any]:
    """Yields the arrays that the graph of another library keeps behind a function.

    They cannot leave memory, nor be rounded, between forward and backward.

    Args:
        function: Function of a graph, a ``FunctionNode``.
    """
    if hasattr(function, "retained"):
        yield from function.retained()


def _arrays_in(values: Iterable[Any]) -> Iterator[Any]:
    """Yields arrays, also those within tuples and lists."""
    kinds = chainer.get_array_types()
    for value in values:
        if isinstance(value, kinds):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _arrays_in(value)
