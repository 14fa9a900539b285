"""When a function may keep what one half of its backward has computed for the other."""

from __future__ import annotations

import chainer


def is_out_of_graph(function: chainer.FunctionNode) -> bool:
    """Returns whether no output leads to a function.

    A pipeline cuts a function off its outputs, and then runs both halves of the
    backward with the same gradients. Calls of :func:`chainer.grad` leave the graph as
    it is. The arrays of gradients may have other values in a later call.

    Args:
        function: A function that has been applied.
    """
    outputs = (reference() for reference in function.outputs)
    return all(y is None or y.creator_node is not function for y in outputs)
