"""A layer in Chainer's graph that reads a segment of its input at a time.

::

    forward                        backward
    for rows of x:                 for rows of x, read again:
      z = x[rows] W^T                gz = f'(y[rows]) gy[rows]
      y[rows] = f(z + b)             gW += gz^T x[rows]
                                     gb += sum of gz

The product and the activation f are computed while the segment is in memory. The input
has no gradient, which would be as large as the input.
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
from divisible.streaming.large_input import LargeInput
from divisible.streaming.products import Linear, Operation
from divisible.streaming.read_ahead import Segment, read_ahead


class InputFunction(chainer.FunctionNode):
    """One call of a layer with a large input; its inputs in the graph are W, and b.

    Args:
        operation (Operation): The layer's arithmetic.
        activation: A function of :data:`.activations.GRADIENTS`, or ``None``.
        source (LargeInput): The input.
        n_rows (int): Rows of a segment.
        dtype: Dtype of the segments.
        timeout (float): Seconds to wait for a segment.
    """

    def __init__(
        self,
        operation: Operation,
        activation: Any,
        source: LargeInput,
        n_rows: int,
        dtype: Any,
        timeout: float,
    ) -> None:
        self.operation, self.activation = operation, activation
        self.source, self.dtype = source, dtype
        self._n_rows, self._timeout = n_rows, timeout
        self._is_flat = isinstance(operation, Linear) and source.ndim > 2

    def segments(self) -> Iterator[Segment]:
        """Yields the segments of the input, in the shape that the operation reads."""
        for each in read_ahead(self.source, self._n_rows, self.dtype, self._timeout):
            rows = each.rows
            if self._is_flat:
                rows = rows.reshape(len(rows), -1)
            yield each._replace(rows=rows)

    def forward(self, inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray]:
        """Computes the outputs segment by segment."""
        W, *rest = inputs
        b, dtype = rest[0] if rest else None, record(self)
        # Only the shape of the input is needed.
        whole = np.broadcast_to(np.zeros((), self.dtype), self.source.shape)
        y = np.empty(self.operation.output_shape(whole, W), W.dtype)
        for start, stop, x in self.segments():
            z, bias = self.operation.forward(x, W, b, dtype)
            activations.forward(self.activation, z, bias, y[start:stop], 0)
        self.retain_inputs((0,))
        if self.activation is not None:
            self.retain_outputs((0,))
        return (y,)

    def backward(
        self, indexes: tuple[int, ...], grad_outputs: tuple[chainer.Variable, ...]
    ) -> tuple[chainer.Variable, ...]:
        """Computes the gradients of W and b.

        Raises:
            RuntimeError: If gradients of the gradients are needed.
        """
        if chainer.config.enable_backprop:
            raise RuntimeError(
                "a layer with a streamed input has no double backward, which would read"
                " the input in another graph"
            )
        gy, found = grad_outputs[0].array, {}
        if 0 in indexes:
            found[0] = np.empty_like(self.weights)
            WeightShare(self, gy).write(found[0])
        if 1 in indexes:
            found[1] = self.bias_gradient(gy)
        return tuple(chainer.Variable(found[i]) for i in indexes)

    @property
    def weights(self) -> np.ndarray:
        """The array of W."""
        return self.inputs[0].data

    def bias_gradient(self, gy: np.ndarray) -> np.ndarray:
        """Returns the gradient of b, which needs no input."""
        gb = np.zeros(gy.shape[1], gy.dtype)
        for start in range(0, len(gy), self._n_rows):
            gz = self.behind_activation(gy, start, min(start + self._n_rows, len(gy)))
            gb += gz.sum((0, *range(2, gz.ndim)))
        return gb

    def behind_activation(self, gy: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Returns the gradient of some rows before the activation."""
        y = None
        if self.activation is not None:
            y = self.get_retained_outputs()[0].array[start:stop]
        return activations.backward(self.activation, y, gy[start:stop], 0, gy.shape[1])


class WeightShare(NamedTuple):
    """The share of one call in the gradient of W, by segments of the input.

    Attributes:
        function: The call.
        gy: The gradient of its output.
    """

    function: InputFunction
    gy: np.ndarray

    def write(self, out: np.ndarray) -> None:
        """Overwrites the gradient."""
        self._pass(out, Scratch(), is_first=True)

    def add(self, out: np.ndarray, scratch: Scratch) -> None:
        """Adds to the gradient."""
        self._pass(out, scratch, is_first=False)

    def _pass(self, out: np.ndarray, scratch: Scratch, is_first: bool) -> None:
        function, dtype = self.function, recorded(self.function)
        for start, stop, x in function.segments():
            gz = function.behind_activation(self.gy, start, stop)
            share = function.operation.weights(x, function.weights, gz, dtype)
            if is_first:
                share.write(out)
            else:
                share.add(out, scratch)
            is_first = False
        if is_first:
            # An input without rows.
            out[...] = 0


def _contributions(
    function: InputFunction, parameters: Mapping[int, chainer.Parameter], gy: np.ndarray
) -> dict[int, Contribution]:
    """Returns contributions to the gradients of W and b; see the kernels' catalogue."""
    shares: dict[int, Contribution] = {}
    if 0 in parameters:
        shares[0] = WeightShare(function, gy)
    if 1 in parameters:
        shares[1] = Whole(function.bias_gradient(gy))
    return shares


InputFunction.taken_apart = Backward(True, _contributions, True)
