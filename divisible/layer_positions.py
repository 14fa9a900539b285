"""Writes on the functions of a graph at which position of the model they were made.

An error in their backward can then name the layer; `divisible.backward.graph_walk`
reads it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import chainer


class _Passes(threading.local):
    number: int | None = None


_passes = _Passes()
_pass_numbers = itertools.count()


@contextmanager
def one_pass() -> Iterator[int]:
    """Numbers the passes through models; that of a nested model is the outer one's."""
    if _passes.number is not None:
        yield _passes.number
        return
    _passes.number = next(_pass_numbers)
    try:
        yield _passes.number
    finally:
        _passes.number = None


def sign(
    outputs: Any, position: int, number: int, signed: set[chainer.FunctionNode]
) -> None:
    """Writes a layer's position on the functions that it added to the graph.

    Args:
        outputs: Of the layer.
        position: In the model; it replaces that in a nested one.
        number: Of this pass. Functions of another one, on whose outputs this goes on,
            are left as they are: state from step to step, or another model.
        signed: The functions of the layers before.
    """
    outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    found = [y.creator_node for y in outputs if isinstance(y, chainer.Variable)]
    while found:
        function = found.pop()
        if function is None or function in signed:
            continue
        if getattr(function, "layer_pass", number) != number:
            continue
        signed.add(function)
        function.layer_position, function.layer_pass = position, number
        found += [x.creator_node for x in function.inputs]
