"""A layer in Chainer's graph that computes with a segment of its weights at a time.

::

    forward                      backward
    for rows of W:               for rows of W:               for rows of W:
      z = x W[rows]^T + b[rows]    gz = f'(y[:, rows]) gy       gz = f'(y[:, rows]) gy
      y[:, rows] = f(z)            gx += gz W[rows]             gW[rows] = gz^T x

The activation f, if there is one, is applied while the segment's outputs are in the
cache. The two passes of the backward are apart, so that a zero-bubble schedule may do
the second one later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels.catalogue import Backward
from chainer_kernels.contributions import Contribution, Scratch, Whole
from divisible.streaming import activations
from divisible.streaming.parameter import ARRAY, GRADIENT, StreamedParameter
from divisible.streaming.products import Operation


class LayerFunction(chainer.FunctionNode):
    """One call of a streamed layer, with inputs x, W and perhaps b.

    Args:
        operation (Operation): The layer's arithmetic.
        weights (StreamedParameter): W.
        activation: A function of :data:`.activations.GRADIENTS`, or ``None``.
    """

    def __init__(
        self, operation: Operation, weights: StreamedParameter, activation: Any
    ) -> None:
        self.operation, self.weights = operation, weights
        self.activation = activation

    def forward(self, inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray]:
        """Computes the outputs segment by segment."""
        x, W, *rest = inputs
        b = rest[0] if rest else None
        y = np.empty(self.operation.output_shape(x, W), x.dtype)
        passing = self.weights.passing
        if chainer.config.enable_backprop:
            passing = self.weights.timed_pass
            self.weights.trial.count(len(x))
        for start, stop in passing(set(), {ARRAY}):
            bias = None if b is None else b[start:stop]
            z = self.operation.forward(x, W[start:stop], bias)
            activations.forward(self.activation, z, y[:, start:stop])
        self.retain_inputs((0, 1))
        if self.activation is not None:
            self.retain_outputs((0,))
        return (y,)

    def backward_accumulate(
        self,
        target_input_indexes: tuple[int, ...],
        grad_outputs: tuple[chainer.Variable, ...],
        grad_inputs: tuple[chainer.Variable | None, ...],
    ) -> tuple[chainer.Variable, ...]:
        """Computes gradients and adds them up; that of W in its file.

        Raises:
            RuntimeError: If the gradients are to have gradients.
        """
        if chainer.config.enable_backprop:
            raise RuntimeError(
                "a streamed layer has no double backward: its gradients are in files"
            )
        gy, found = grad_outputs[0].array, []
        for i, before in zip(target_input_indexes, grad_inputs):
            if i == 1:
                found.append(self._weight_gradient(gy, before))
                continue
            gradient = self.bias_gradient(gy) if i == 2 else self.input_gradient(gy)
            if before is not None:
                gradient += before.array
            found.append(chainer.Variable(gradient))
        return tuple(found)

    def input_gradient(self, gy: np.ndarray) -> np.ndarray:
        """Returns the gradient of x."""
        x, W = self._arrays()
        gx, scratch = np.empty(x.shape, x.dtype), Scratch()
        for start, stop in self.weights.timed_pass(set(), {ARRAY}):
            gz = self.behind_activation(gy, start, stop)
            share = self.operation.input_gradient(x, W[start:stop], gz)
            if start == 0:
                share.write(gx)
            else:
                share.add(gx, scratch)
        return gx

    def bias_gradient(self, gy: np.ndarray) -> np.ndarray:
        """Returns the gradient of b."""
        axes = (0, *range(2, gy.ndim))
        if self.activation is None:
            return gy.sum(axes)
        gb = np.empty(gy.shape[1], gy.dtype)
        for start, stop in self.weights.segments():
            gb[start:stop] = self.behind_activation(gy, start, stop).sum(axes)
        return gb

    def _weight_gradient(
        self, gy: np.ndarray, before: chainer.Variable | None
    ) -> chainer.Variable:
        """Writes the gradient of W, or adds it to the one that is there."""
        share = WeightShare(self, gy)
        if before is not None:
            share.add(before.array, Scratch())
            return before
        gradient = self.weights.new_gradient()
        share.write(gradient)
        return chainer.Variable(gradient)

    def behind_activation(self, gy: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Returns the gradient of some outputs as they were before the activation."""
        part = gy[:, start:stop]
        if self.activation is not None:
            y = self.get_retained_outputs()[0].array[:, start:stop]
            part = activations.backward(self.activation, y, part)
        return np.ascontiguousarray(part)

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        x, W = (self.inputs[i].data for i in range(2))
        return x, W


class WeightShare(NamedTuple):
    """The share of one call of a layer in the gradient of W, by segments.

    Attributes:
        function: The call.
        gy: The gradient of its output.
    """

    function: LayerFunction
    gy: np.ndarray

    def write(self, out: np.ndarray) -> None:
        """Overwrites the gradient."""
        for rows, share in self._shares():
            share.write(out[rows])

    def add(self, out: np.ndarray, scratch: Scratch) -> None:
        """Adds to the gradient."""
        for rows, share in self._shares():
            share.add(out[rows], scratch)

    def _shares(self) -> Iterator[tuple[slice, Contribution]]:
        function, weights = self.function, self.function.weights
        x, W = function._arrays()
        # Of W no more than the shape is needed.
        for start, stop in weights.timed_pass({GRADIENT}):
            gz = function.behind_activation(self.gy, start, stop)
            yield (
                slice(start, stop),
                function.operation.weights(x, W[start:stop], gz),
            )


def _contributions(
    function: LayerFunction, parameters: Mapping[int, chainer.Parameter], gy: np.ndarray
) -> dict[int, Contribution]:
    """Tells what to add to the gradients of W and b; see the kernels' catalogue."""
    shares: dict[int, Contribution] = {}
    if 1 in parameters:
        shares[1] = WeightShare(function, gy)
    if 2 in parameters:
        shares[2] = Whole(function.bias_gradient(gy))
    return shares


LayerFunction.taken_apart = Backward(True, _contributions, True)
