"""A layer in Chainer's graph that computes with a segment of its weights at a time.

::

    forward                        backward
    for rows of W:                 for rows of W:
      z = x W[rows]^T                gz = f'(y[:, rows]) gy
      y[:, rows] = f(z + b[rows])    gx += gz W[rows]
                                     gW[rows] = gz^T x
                                     gb[rows] = sum of gz

An activation f is applied while the segment's outputs are in the cache. A pipeline
computes gx and the other gradients in two passes, so that a zero-bubble schedule may
run the second one later. If W is updated with the last microbatch's gW, one pass
computes that and gx, unless gx is known already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels.catalogue import Backward
from chainer_kernels.contributions import Contribution, Scratch, Whole
from chainer_kernels.product_dtype import record, recorded
from divisible.streaming import activations
from divisible.streaming.parameter import ARRAY, GRADIENT, StreamedParameter
from divisible.streaming.products import Operation


class LayerFunction(chainer.FunctionNode):
    """One call of a streamed layer, with inputs x and W, and b if it has a bias.

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
        # Whether the gradient of x was requested, and its value if it is known already.
        self._is_asked = False
        self._gx: np.ndarray | None = None

    def forward(self, inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray]:
        """Computes the outputs segment by segment."""
        x, W, *rest = inputs
        b = rest[0] if rest else None
        y = np.empty(self.operation.output_shape(x, W), x.dtype)
        dtype = record(self)
        passing = self.weights.passing
        if chainer.config.enable_backprop:
            passing = self.weights.timed_pass
            self.weights.trial.count(len(x))
        for start, stop in passing(set(), {ARRAY}):
            segment = W[start:stop], _rows(b, start, stop)
            z, bias = self.operation.forward(x, *segment, dtype)
            activations.forward(self.activation, z, bias, y, start)
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
        """Computes gradients and adds them up; the gradient of W in its file.

        Raises:
            RuntimeError: If gradients of the gradients are needed.
        """
        if chainer.config.enable_backprop:
            raise RuntimeError(
                "a streamed layer has no double backward: its gradients are in files"
            )
        gy = grad_outputs[0].array
        before = dict(zip(target_input_indexes, grad_inputs))
        self._is_asked = self._is_asked or 0 in before
        if self._gx is not None:
            return self._gradient_found(before)
        sums = _Sums(self, gy, before)
        written = {GRADIENT} if 1 in before else set()
        read = {ARRAY} if 0 in before else set()
        # One pass computes all requested gradients.
        for start, stop in self.weights.timed_pass(written, read):
            sums.add(start, stop)
        return sums.variables()

    def _gradient_found(
        self, before: Mapping[int, chainer.Variable | None]
    ) -> tuple[chainer.Variable, ...]:
        """Returns the known gradient of x, the only one that is requested."""
        (known,), gx = before.values(), self._gx
        self._gx = None
        if known is not None:
            gx += known.array
        return (chainer.Variable(gx),)

    def update(self, gy: np.ndarray, known: np.ndarray | None) -> None:
        """Updates W with the gradient of a minibatch.

        The gradient of x is computed in the same pass, before W changes, unless it is
        known already or not needed.

        Args:
            gy: The gradient of the output, for the last microbatch.
            known: The sum of gradients of W from other calls; ``None`` if there are
                none.
        """
        needs_gx = self.inputs[0].requires_grad and not self._is_asked
        sums = _Sums(self, gy, {0: None} if needs_gx else {})
        x, W = self._arrays()

        def share(rows: slice) -> Contribution:
            gz = sums.add(rows.start, rows.stop)
            return self.operation.weights(x, W[rows], gz, recorded(self))

        self.weights.update_early(share, known)
        if needs_gx:
            self._gx = sums.variables()[0].array

    def bias_gradient(self, gy: np.ndarray) -> np.ndarray:
        """Returns the gradient of b."""
        gb = np.empty(gy.shape[1], gy.dtype)
        for start, stop in self.weights.segments():
            gb[start:stop] = self.sum_of_outputs(
                self.behind_activation(gy, start, stop)
            )
        return gb

    @staticmethod
    def sum_of_outputs(gz: np.ndarray) -> np.ndarray:
        """Returns the sum of each output channel's gradients."""
        return gz.sum((0, *range(2, gz.ndim)))

    def behind_activation(self, gy: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Returns the gradient of some outputs before the activation."""
        y = None
        if self.activation is not None:
            y = self.get_retained_outputs()[0].array
        return activations.backward(self.activation, y, gy, start, stop)

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        x, W = (self.inputs[i].data for i in range(2))
        return x, W


def _rows(array: np.ndarray | None, start: int, stop: int) -> np.ndarray | None:
    return None if array is None else array[start:stop]


class _Sums:
    """The gradients of the inputs of a call, added up segment by segment.

    Args:
        function: The call.
        gy: The gradient of its output.
        before: The gradients so far, or ``None``, by number of the requested input.
    """

    def __init__(
        self,
        function: LayerFunction,
        gy: np.ndarray,
        before: Mapping[int, chainer.Variable | None],
    ) -> None:
        self._function, self._gy, self._before = function, gy, before
        self._scratch = Scratch()
        self._found: dict[int, np.ndarray] = {}
        x, W = function._arrays()
        if 0 in before:
            self._found[0] = np.empty(x.shape, x.dtype)
        if 1 in before:
            known = before[1]
            self._found[1] = (
                function.weights.new_gradient() if known is None else known.array
            )
        if 2 in before:
            self._found[2] = np.empty(gy.shape[1], gy.dtype)

    def add(self, start: int, stop: int) -> np.ndarray:
        """Adds the share of a segment; returns the gradient of its outputs."""
        function, found = self._function, self._found
        x, W = function._arrays()
        operation, rows = function.operation, slice(start, stop)
        dtype = recorded(function)
        gz = function.behind_activation(self._gy, start, stop)
        if 0 in found:
            share = operation.input_gradient(x, W[rows], gz, dtype)
            self._put(share, found[0], is_first=start == 0)
        if 1 in found:
            share = operation.weights(x, W[rows], gz, dtype)
            self._put(share, found[1][rows], is_first=self._before[1] is None)
        if 2 in found:
            found[2][rows] = function.sum_of_outputs(gz)
        return gz

    def _put(self, share: Contribution, out: np.ndarray, is_first: bool) -> None:
        if is_first:
            share.write(out)
        else:
            share.add(out, self._scratch)

    def variables(self) -> tuple[chainer.Variable, ...]:
        """Returns the sums, in the order of the inputs."""
        result = []
        for number, known in self._before.items():
            gradient = self._found[number]
            if known is not None and number == 1:
                result.append(known)
                continue
            if known is not None:
                gradient += known.array
            result.append(chainer.Variable(gradient))
        return tuple(result)


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

    def update(self, known: np.ndarray | None) -> None:
        """Updates W with this share, and with the gradient that is known already."""
        self.function.update(self.gy, known)

    def _shares(self) -> Iterator[tuple[slice, Contribution]]:
        function, weights = self.function, self.function.weights
        x, W = function._arrays()
        # W itself is not read, because only its shape is needed.
        for start, stop in weights.timed_pass({GRADIENT}):
            gz = function.behind_activation(self.gy, start, stop)
            yield (
                slice(start, stop),
                function.operation.weights(x, W[start:stop], gz, recorded(function)),
            )


def _contributions(
    function: LayerFunction, parameters: Mapping[int, chainer.Parameter], gy: np.ndarray
) -> dict[int, Contribution]:
    """Returns contributions to the gradients of W and b; see the kernels' catalogue."""
    shares: dict[int, Contribution] = {}
    if 1 in parameters:
        shares[1] = WeightShare(function, gy)
    if 2 in parameters:
        shares[2] = Whole(function.bias_gradient(gy))
    return shares


LayerFunction.taken_apart = Backward(True, _contributions, True)
