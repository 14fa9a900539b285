"""Reports which gradients are complete while backward is still running.

Chainer sets the gradients of parameters at the very end of backward. Until then they
are in an internal table::

    loss --- F3 --- F2 --- F1          counted before: W is an input of F3 and F1
              |             |
              W ----------- W
    backward of F3, F2, F1
                        ^ F1 has added the last part: the gradient of W is complete

The watch replaces the class of the table during backward, to get the table. A function
hook counts the functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import chainer
import numpy as np
from chainer import _backprop_utils

from data_parallel.parameters import NamedParameter


class GradientWatch(chainer.FunctionHook):
    """Watches one backward, as a context around it.

    Args:
        loss (chainer.Variable): Loss from which backward starts.
        parameters: Parameters of the model.
        complete: Called with the position of a parameter and its gradient, an array
            that Chainer may still use.
        look: Called after each function.
    """

    name = "GradientWatch"

    def __init__(
        self,
        loss: chainer.Variable,
        parameters: Sequence[NamedParameter],
        complete: Callable[[int, np.ndarray], None],
        look: Callable[[], None],
    ) -> None:
        self._complete, self._look = complete, look
        self._positions = {p.node: i for i, (_, p) in enumerate(parameters)}
        # Keys are ids of functions, without those of graphs within functions.
        self._inputs_of = _uses(loss, self._positions)
        self._n_uses: dict[Any, int] = {}
        for nodes in self._inputs_of.values():
            for node in nodes:
                self._n_uses[node] = self._n_uses.get(node, 0) + 1
        self._table: Any = None

    def __enter__(self) -> GradientWatch:
        self._table_type = _backprop_utils.GradTable
        _backprop_utils.GradTable = self._make_table
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _backprop_utils.GradTable = self._table_type
        self._table = None

    def _make_table(self, *args: Any, **kwds: Any) -> Any:
        table = self._table_type(*args, **kwds)
        if self._table is None:
            # Later tables belong to a backward within this one.
            self._table = table
        return table

    def backward_postprocess(self, function: Any, in_data: Any, out_grad: Any) -> None:
        """Counts the parts of gradients that a function has added."""
        for node in self._inputs_of.pop(id(function), ()):
            self._n_uses[node] -= 1
            parts = self._table.get_as_list(node)
            # Chainer adds up several parts itself, later.
            if not self._n_uses[node] and len(parts) == 1:
                self._complete(self._positions[node], parts[0].array)
        self._look()


def _uses(loss: chainer.Variable, nodes: dict[Any, int]) -> dict[int, list[Any]]:
    """Returns the given nodes among the inputs of each function behind a loss."""
    found = {}
    seen, functions = set(), [loss.creator_node]
    while functions:
        function = functions.pop()
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        inputs = [node for node in dict.fromkeys(function.inputs) if node in nodes]
        if inputs:
            found[id(function)] = inputs
        functions += [node.creator_node for node in function.inputs]
    return found
