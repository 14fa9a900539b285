"""Linear layers and convolutions whose products are added up in float16.

Chainer's functions compute the direction whose sums are float32, as in other layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.functions.connection.convolution_2d import Convolution2DFunction
from chainer.functions.connection.linear import LinearFunction
from chainer.utils import conv

from chainer_kernels.half_sums import product
from mixed_precision.layer_types import FLOAT16, LayerTypes

Variables = tuple[chainer.Variable, ...]
Arrays = tuple[np.ndarray, ...]


class _HalfSums:
    """A subclass's part of a function: forward or backward, or both, in float16."""

    types: LayerTypes

    def backward(self, indexes: Sequence[int], grad_outputs: Variables) -> Variables:
        """Returns the gradients of the inputs at some positions."""
        if self.types.backward_math != FLOAT16:
            return super().backward(indexes, grad_outputs)
        if chainer.config.enable_backprop:
            raise RuntimeError(
                "a layer with backward_math='float16' has no second derivative: leave"
                " out backward_math, or enable_double_backprop"
            )
        x, W = (each.array for each in self.get_retained_inputs())
        gradients = self._gradients(x, W, grad_outputs[0].array)
        return tuple(chainer.Variable(gradients[i]()) for i in indexes)


class _Linear(_HalfSums, LinearFunction):
    """``y = x W + b``; W is (units, inputs), x is (samples, inputs)."""

    def __init__(self, types: LayerTypes) -> None:
        super().__init__()
        self.types = types

    def forward(self, inputs: Arrays) -> Arrays:
        """Returns y, (samples, units)."""
        if self.types.forward_math != FLOAT16:
            return super().forward(inputs)
        self._config_use_ideep = chainer.config.use_ideep
        self.retain_inputs((0, 1))
        x, W, *b = inputs
        return (_plus(product(x, W.T), *b),)

    @staticmethod
    def _gradients(x: np.ndarray, W: np.ndarray, gy: np.ndarray) -> list[Any]:
        return [
            lambda: product(gy, W),
            lambda: product(gy.T, x),
            lambda: _sum_of_rows(gy),
        ]


class _Convolution2D(_HalfSums, Convolution2DFunction):
    """A convolution, as a product of windows and weights.

    ::

        x (N, C, H, W) -> windows (N * rows * columns, C * kernel) @ W (C * kernel, O)
    """

    def __init__(self, types: LayerTypes, link: L.Convolution2D) -> None:
        super().__init__(link.stride, link.pad, dilate=link.dilate)
        self.types = types

    def forward_cpu(self, inputs: Arrays) -> Arrays:
        """Returns y, (N, O, rows, columns)."""
        if self.types.forward_math != FLOAT16:
            return super().forward_cpu(inputs)
        self.retain_inputs((0, 1))
        x, W, *b = inputs
        windows, (n, rows, columns) = self._windows(x, W)
        y = _plus(product(windows, W.reshape(len(W), -1).T), *b)
        return (np.moveaxis(y.reshape(n, rows, columns, len(W)), 3, 1),)

    def _windows(self, x: np.ndarray, W: np.ndarray) -> tuple[np.ndarray, tuple]:
        """Returns what the windows read as rows, and the shape of the outputs."""
        kernel = W.shape[2:]
        columns = conv.im2col_cpu(
            x, *kernel, self.sy, self.sx, self.ph, self.pw, dy=self.dy, dx=self.dx
        )
        rows = columns.transpose(0, 4, 5, 1, 2, 3)
        return rows.reshape(-1, W[0].size), rows.shape[:3]

    def _gradients(self, x: np.ndarray, W: np.ndarray, gy: np.ndarray) -> list[Any]:
        outputs = np.moveaxis(gy, 1, 3)
        gradients = outputs.reshape(-1, len(W))

        def of_inputs() -> np.ndarray:
            windows = product(gradients, W.reshape(len(W), -1))
            columns = windows.reshape(*outputs.shape[:3], *W.shape[1:])
            # Where windows overlap, this adds in the dtype of the array.
            return conv.col2im_cpu(
                columns.transpose(0, 3, 4, 5, 1, 2),
                *(self.sy, self.sx, self.ph, self.pw),
                *x.shape[2:],
                dy=self.dy,
                dx=self.dx,
            )

        def of_weights() -> np.ndarray:
            return product(gradients.T, self._windows(x, W)[0]).reshape(W.shape)

        return [of_inputs, of_weights, lambda: _sum_of_rows(gradients)]


def why_not(kind: type, link: chainer.Link) -> str:
    """Returns the reason why a link has no sums in float16; empty if it has.

    Args:
        kind: Class of the link.
        link: The link.
    """
    if kind is L.Linear:
        return ""
    if kind is L.Convolution2D:
        return "" if link.groups == 1 else f"it has {link.groups} groups of channels"
    return f"it is {kind.__name__}, neither Linear nor Convolution2D"


def apply(link: chainer.Link, types: LayerTypes, x: Any, n_batch_axes: int = 1) -> Any:
    """Applies a link, as its own ``forward`` does.

    Args:
        link: Link for which :func:`why_not` returns nothing.
        types: Types with sums in float16.
        x: Input of the link, float16.
        n_batch_axes: Number of leading axes that ``L.Linear`` keeps.

    Raises:
        TypeError: If sums in float16 are asked for on a GPU.
    """
    if not isinstance(chainer.as_array(x), np.ndarray):
        raise TypeError(
            "sums in float16 are computed on a CPU only: on a GPU leave out"
            " forward_math and backward_math of LayerTypes"
        )
    is_linear = isinstance(link, L.Linear)
    if link.W.array is None:
        n = np.prod(x.shape[n_batch_axes:], dtype=int) if is_linear else x.shape[1]
        link._initialize_params(int(n))
    given = (link.W,) if link.b is None else (link.W, link.b)
    if not is_linear:
        return _Convolution2D(types, link).apply((x, *given))[0]
    leading = x.shape[:n_batch_axes]
    # Without samples there are no sizes that could be found from others.
    rows = F.reshape(x, (math.prod(leading), math.prod(x.shape[n_batch_axes:])))
    y = _Linear(types).apply((rows, *given))[0]
    return F.reshape(y, (*leading, y.shape[1])) if n_batch_axes > 1 else y


def _plus(y: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    with np.errstate(over="ignore"):
        return y if bias is None else y + bias


def _sum_of_rows(matrix: np.ndarray) -> np.ndarray:
    return product(np.ones((1, len(matrix)), np.float16), matrix)[0]
