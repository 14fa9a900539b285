"""A layer that rounds as an edge between two stages with narrow messages does."""

from __future__ import annotations

from typing import Any

import chainer

from divisible.communication.narrowing import arrived


class Rounded:
    """A layer that rounds its input, and the gradient of its output.

    A serial model with one at each cut computes what a pipeline of these stages does.

    Args:
        forward: Name of the dtype of activations.
        backward: Name of the dtype of gradients.
    """

    def __init__(self, forward: str, backward: str) -> None:
        self._names = forward, backward

    def __call__(self, *x: Any) -> Any:
        """Returns the rounded inputs."""
        found = _Rounding(*self._names).apply(x)
        return found[0] if len(found) == 1 else found


class _Rounding(chainer.FunctionNode):
    def __init__(self, forward: str, backward: str) -> None:
        super().__init__()
        self._names = forward, backward

    def forward(self, inputs: tuple) -> tuple:
        """Rounds activations."""
        return tuple(arrived(x, self._names[0]) for x in inputs)

    def backward(self, indexes: tuple, grad_outputs: tuple) -> tuple:
        """Rounds gradients."""
        name = self._names[1]
        return tuple(
            None if g is None else chainer.as_variable(arrived(g.array, name))
            for g in grad_outputs
        )
