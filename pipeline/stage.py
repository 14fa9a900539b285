"""One stage's computations on microbatches: forward and backward.

Communication is outside of autograd: a stage turns arrays into arrays. Within it,
each microbatch has a graph of its own, from fresh leaf variables to the outputs,
held from its forward to its backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np

from divisible import Divisible
from pipeline import backprop
from pipeline.backprop import PendingWeightGradients
from pipeline.transport import Tensor
from pipeline.weight_gradients import WeightGradients

Message = tuple  # of Tensor


class _Held(NamedTuple):
    """What the backward of a microbatch needs from its forward."""

    inputs: list[Any]
    outputs: list[Any]


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

    def forward(self, microbatch: int, inputs: Message) -> Message:
        """Runs the layers on one microbatch (F).

        Args:
            microbatch (int): Its position in the minibatch.
            inputs: Tensors from the stage before, or the user's input.

        Returns:
            The outputs, as tensors; none of the loss.

        """
        if not inputs:
            return ()
        values = [_value(tensor) for tensor in inputs]
        outputs = self.layers(*values)
        if not isinstance(outputs, (tuple, list)):
            outputs = [outputs]
        message = tuple(_tensor(y) for y in outputs)
        if self.loss is not None and self.loss.is_wanted:
            outputs = [self.loss(microbatch, outputs)]
        if chainer.config.enable_backprop:
            self._held[microbatch] = _Held(values, outputs)
        return message

    def backward(self, microbatch: int, gradients: Message) -> Message:
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
        return _as_message(held.inputs, variables, input_gradients)

    def backward_input(self, microbatch: int, gradients: Message) -> Message:
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
        return _as_message(held.inputs, variables, input_gradients)

    def backward_weight(self, microbatch: int) -> None:
        """Adds the weight gradients of one microbatch (W)."""
        if microbatch in self._pending:
            with _layer_named():
                self._pending.pop(microbatch).run()

    def _backward_arguments(
        self, microbatch: int, held: _Held, gradients: Message
    ) -> tuple[list[chainer.Variable], tuple]:
        if self.loss is not None:
            gradients = (Tensor(self.loss.gradient(microbatch, held.outputs[0])),)
        outputs = [
            (y, gradient.array)
            for y, gradient in zip(held.outputs, gradients)
            if isinstance(y, chainer.Variable)
        ]
        variables = [x for x in held.inputs if isinstance(x, chainer.Variable)]
        return variables, (*map(list, zip(*outputs)), self._weight_gradients)


@contextmanager
def _layer_named() -> Iterator[None]:
    """Says in an error which layer's backward raised it, as forward does."""
    try:
        yield
    except Exception as error:
        function = getattr(error, "function_node", None)
        error.layer_position = getattr(function, "layer_position", None)
        raise


def _as_message(
    inputs: list[Any], variables: list[chainer.Variable], gradients: Sequence[Any]
) -> Message:
    """Puts the variables' gradients in the places of the inputs."""
    by_input = {id(x): gradient for x, gradient in zip(variables, gradients)}
    return tuple(Tensor(by_input.get(id(x))) for x in inputs)


class Loss:
    """What follows the last layer: loss and accuracy of a minibatch.

    The minibatch's loss is the mean of its microbatches' losses weighted by their
    numbers of samples, which is the loss of the undivided minibatch if ``lossfun``
    is a mean over samples.

    Args:
        lossfun: ``lossfun(*outputs, *targets)`` returns a scalar variable, the mean
            over the samples.
        accfun: The same for the accuracy, or ``None``.

    """

    def __init__(self, lossfun: Callable, accfun: Callable | None) -> None:
        self._functions = {"loss": lossfun}
        if accfun is not None:
            self._functions["accuracy"] = accfun
        self.names = tuple(self._functions)
        self._n_classes: int | None = None
        self.start(None, ())

    def start(self, targets: Sequence[tuple] | None, sizes: Sequence[int]) -> None:
        """Begins a minibatch.

        Args:
            targets: For each microbatch its targets, a tuple of arrays; ``None`` if
                no loss is wanted.
            sizes: For each microbatch its number of samples.

        Raises:
            ValueError: If a class label is out of range, as far as the number of
                classes is known from an earlier minibatch.

        """
        self._targets = targets
        self._weights = np.asarray(sizes, dtype=np.float64)
        self._weights /= max(1, self._weights.sum())
        self._sums = np.zeros(len(self.names))
        if self._n_classes is not None:
            self._check_labels()

    @property
    def is_wanted(self) -> bool:
        """Whether the minibatch has targets."""
        return self._targets is not None

    @property
    def means(self) -> np.ndarray:
        """The means over the microbatches seen so far, in the order of ``names``."""
        return self._sums

    def __call__(self, microbatch: int, outputs: list[Any]) -> chainer.Variable:
        """Returns the loss of one microbatch, and counts it."""
        if self._functions["loss"] is chainer.functions.softmax_cross_entropy:
            self._check_outputs(microbatch, outputs)
        targets = self._targets[microbatch]
        values = [f(*outputs, *targets) for f in self._functions.values()]
        for i, value in enumerate(values):
            self._sums[i] += self._weights[microbatch] * float(_array(value))
        return values[0]

    def gradient(self, microbatch: int, loss: chainer.Variable) -> Any:
        """Returns the gradient of the minibatch's loss by the microbatch's loss."""
        xp = chainer.backend.get_array_module(loss.array)
        return xp.full_like(loss.array, self._weights[microbatch])

    def _check_outputs(self, microbatch: int, outputs: list[Any]) -> None:
        n_outputs, n_targets = (
            len(arrays[0]) for arrays in (outputs, self._targets[microbatch])
        )
        if n_outputs != n_targets:
            raise ValueError(
                f"microbatch {microbatch} has {n_outputs} samples but {n_targets}"
                f" targets: the first rank's x and the last rank's t must be of the"
                f" same minibatch"
            )
        if self._n_classes is None:
            self._n_classes = outputs[0].shape[1]
            self._check_labels()

    def _check_labels(self) -> None:
        """Refuses labels that NumPy would take from the end, and CuPy from anywhere."""
        for i, targets in enumerate(self._targets or ()):
            labels = targets[0]
            if labels.size == 0 or labels.dtype.kind not in "iu":
                continue
            low, high = int(labels.min()), int(labels.max())
            if low < -1 or high >= self._n_classes:
                raise ValueError(
                    f"microbatch {i} has the label"
                    f" {low if low < -1 else high}, but the model has"
                    f" {self._n_classes} outputs: labels go from 0 to"
                    f" {self._n_classes - 1}, and -1 is ignored"
                )


def _value(tensor: Tensor) -> Any:
    """Returns what a layer is called with: just what the layer before returned."""
    if tensor.requires_grad is None:
        return tensor.array
    return chainer.Variable(tensor.array, requires_grad=tensor.requires_grad)


def _tensor(y: Any) -> Tensor:
    if isinstance(y, chainer.Variable):
        return Tensor(y.array, y.requires_grad)
    return Tensor(y)


def _array(value: Any) -> Any:
    return getattr(value, "array", value)
