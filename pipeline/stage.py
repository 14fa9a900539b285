"""One stage's computations on microbatches: forward and backward.

Communication is outside of autograd: a stage turns arrays into arrays. Within it,
each microbatch has a graph of its own, from fresh leaf variables to the outputs,
held from its forward to its backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import chainer

from divisible import Divisible
from pipeline import backprop
from pipeline.backprop import PendingWeightGradients
from pipeline.loss import Loss
from pipeline.message import Tensor, Tensors
from pipeline.weight_gradients import WeightGradients


class _Held(NamedTuple):
    """What the backward of a microbatch needs from its forward."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]


class Stage:
    """Runs the layers of one stage.

    A message of no tensors stands for a microbatch of no samples, which passes
    through without any layer being called.

    Args:
        layers (Divisible): The layers.
        loss (Loss or None): On the last stage, what follows the layers.
    """

    def __init__(self, layers: Divisible, loss: Loss | None = None) -> None:
        self.layers = layers
        self.loss = loss
        self._weight_gradients = WeightGradients(self._parameters)
        self._held: dict[int, _Held] = {}
        self._pending: dict[int, PendingWeightGradients] = {}

    def _parameters(self) -> Iterator[chainer.Parameter]:
        yield from self.layers.params()

    def begin(self) -> None:
        """Begins a minibatch: no gradients, no microbatches."""
        self._weight_gradients.begin()
        self._held.clear()
        self._pending.clear()

    def finish(self) -> None:
        """Ends a minibatch: leaves its gradients in ``param.grad``."""
        self._weight_gradients.finish()

    def forward(self, microbatch: int, inputs: Tensors) -> Tensors:
        """Runs the layers on one microbatch (F).

        Args:
            microbatch (int): Its position in the minibatch.
            inputs: Tensors from the stage before, or the user's input.

        Returns:
            The outputs, as tensors; nothing once the loss has used them.
        """
        if not inputs:
            return ()
        values = [tensor.value() for tensor in inputs]
        outputs = self.layers(*values)
        if not isinstance(outputs, tuple):
            outputs = (outputs,)
        if self.loss is None or not self.loss.is_wanted:
            result = tuple(map(Tensor.of, outputs))
        else:
            outputs = (self.loss(microbatch, outputs),)
            result = ()
        if chainer.config.enable_backprop:
            self._held[microbatch] = _Held(values, outputs)
        return result

    def backward(self, microbatch: int, gradients: Tensors) -> Tensors:
        """Runs the whole backward of one microbatch (B).

        Adds to the gradients of the parameters.

        Args:
            microbatch (int): Its position in the minibatch.
            gradients: One tensor per output, from the stage after; ignored on the
                last stage, whose loss starts the backward.

        Returns:
            One tensor per input: its gradient, or none where there is none.
        """
        if microbatch not in self._held:
            return ()
        held = self._held.pop(microbatch)
        variables, arguments = self._backward_arguments(microbatch, held, gradients)
        with _layer_named():
            input_gradients = backprop.backward(variables, *arguments)
        return _in_places(held.inputs, variables, input_gradients)

    def backward_input(self, microbatch: int, gradients: Tensors) -> Tensors:
        """Computes the input gradients of one microbatch (I), as :meth:`backward`.

        What the weight gradients need is held until :meth:`backward_weight`.
        """
        if microbatch not in self._held:
            return ()
        held = self._held.pop(microbatch)
        variables, arguments = self._backward_arguments(microbatch, held, gradients)
        with _layer_named():
            input_gradients, self._pending[microbatch] = backprop.backward_input(
                variables, *arguments
            )
        return _in_places(held.inputs, variables, input_gradients)

    def backward_weight(self, microbatch: int) -> None:
        """Adds the weight gradients of one microbatch (W)."""
        if microbatch in self._pending:
            with _layer_named():
                self._pending.pop(microbatch).run()

    def _backward_arguments(
        self, microbatch: int, held: _Held, gradients: Tensors
    ) -> tuple[list[chainer.Variable], tuple]:
        if self.loss is not None:
            gradients = (Tensor(self.loss.gradient(microbatch, held.outputs[0])),)
        outputs, output_gradients = [], []
        for y, gradient in zip(held.outputs, gradients):
            if isinstance(y, chainer.Variable):
                outputs.append(y)
                output_gradients.append(gradient.array)
        variables = [x for x in held.inputs if isinstance(x, chainer.Variable)]
        return variables, (outputs, output_gradients, self._weight_gradients)


@contextmanager
def _layer_named() -> Iterator[None]:
    """Says in an error which layer's backward raised it, as forward does."""
    try:
        yield
    except Exception as error:
        function = getattr(error, "function_node", None)
        error.layer_position = getattr(function, "layer_position", None)
        raise


def _in_places(
    inputs: Sequence[Any], variables: list[chainer.Variable], gradients: Sequence[Any]
) -> Tensors:
    """Puts the variables' gradients in the places of the inputs."""
    by_input = {id(x): gradient for x, gradient in zip(variables, gradients)}
    return tuple(Tensor(by_input.get(id(x))) for x in inputs)
