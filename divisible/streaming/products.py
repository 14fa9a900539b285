"""Linear layers and convolutions on some of their outputs.

Each class here has a layer's arithmetic for some rows of W, which make output
channels::

    forward          z = x W[start:stop]^T, and b[start:stop] with it or for later
    input_gradient   gx += gz W[start:stop]
    weights          gW[start:stop] = gz^T x,  or += it

Operands may be rounded to a dtype for it, as :mod:`chainer_kernels.product_dtype` says.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.functions.connection.convolution_2d import (
    Convolution2DFunction,
    Convolution2DGradW,
)

from chainer_kernels.contributions import Contribution, Product, Whole
from chainer_kernels.product_dtype import scope
from divisible.planning.disk import STREAMABLE


class Outputs(NamedTuple):
    """Some outputs of a layer.

    Attributes:
        z: The outputs.
        b: Bias that is still to be added to each channel; ``None`` for no bias.
    """

    z: np.ndarray
    b: np.ndarray | None


class Operation(Protocol):
    """A layer's arithmetic on some of its output channels, which are axis 1."""

    def output_shape(self, x: np.ndarray, W: np.ndarray) -> tuple[int, ...]:
        """Returns the shape of the whole output."""

    def forward(self, x: np.ndarray, W: np.ndarray, b: Any, dtype: str) -> Outputs:
        """Returns the outputs of some rows of W; b may be ``None``."""

    def input_gradient(
        self, x: np.ndarray, W: np.ndarray, gz: np.ndarray, dtype: str
    ) -> Any:
        """Returns the contribution of these outputs to the gradient of x."""

    def weights(
        self, x: np.ndarray, W: np.ndarray, gz: np.ndarray, dtype: str
    ) -> Contribution:
        """Returns the gradient of these rows of W, as a contribution."""


class Linear(NamedTuple):
    """The arithmetic of ``L.Linear``: x (N, n_in), W (n_out, n_in)."""

    def output_shape(self, x: np.ndarray, W: np.ndarray) -> tuple[int, ...]:
        """Returns the shape of the whole output.

        Raises:
            ValueError: If the inputs are not of the layer's size.
        """
        n_in = math.prod(x.shape[1:])
        if n_in != W.shape[1]:
            # Kernels of products do not check what they read.
            raise ValueError(
                f"the input of shape {x.shape} has {n_in} numbers for each sample, and"
                f" the layer reads {W.shape[1]}: give the layer this size"
            )
        return len(x), len(W)

    def forward(self, x: np.ndarray, W: np.ndarray, b: Any, dtype: str) -> Outputs:
        """Returns the outputs of some rows of W."""
        z = np.empty((len(x), len(W)), x.dtype)
        Product(x, W.T, dtype).write(z)
        # The activation adds the bias in the same pass.
        return Outputs(z, b)

    def input_gradient(
        self, x: np.ndarray, W: np.ndarray, gz: np.ndarray, dtype: str
    ) -> Any:
        """Returns the contribution of these outputs to the gradient of x."""
        return Product(gz, W, dtype)

    def weights(
        self, x: np.ndarray, W: np.ndarray, gz: np.ndarray, dtype: str
    ) -> Contribution:
        """Returns the gradient of these rows of W."""
        return Product(gz.T, x, dtype)


class Convolution(NamedTuple):
    """The arithmetic of ``L.Convolution2D``: x (N, C, h, w), W (O, C, kh, kw).

    Attributes:
        stride: Strides along both axes.
        pad: Padding along both axes.
        dilate: Dilation along both axes.
    """

    stride: tuple[int, int]
    pad: tuple[int, int]
    dilate: tuple[int, int]

    def output_shape(self, x: np.ndarray, W: np.ndarray) -> tuple[int, ...]:
        """Returns the shape of the whole output."""
        sizes = self._function()._get_out_size(x.shape, W.shape)
        return (len(x), len(W), *sizes)

    def forward(self, x: np.ndarray, W: np.ndarray, b: Any, dtype: str) -> Outputs:
        """Returns the outputs of some rows of W."""
        with chainer.no_backprop_mode(), scope(dtype):
            inputs = (x, W) if b is None else (x, W, b)
            return Outputs(self._function().apply(inputs)[0].array, None)

    def input_gradient(
        self, x: np.ndarray, W: np.ndarray, gz: np.ndarray, dtype: str
    ) -> Any:
        """Returns the contribution of these outputs to the gradient of x."""
        with chainer.no_backprop_mode(), scope(dtype):
            gx = F.deconvolution_2d(
                gz,
                W,
                stride=self.stride,
                pad=self.pad,
                outsize=x.shape[2:],
                dilate=self.dilate,
            )
        return Whole(gx.array)

    def weights(
        self, x: np.ndarray, W: np.ndarray, gz: np.ndarray, dtype: str
    ) -> Contribution:
        """Returns the gradient of these rows of W."""
        with chainer.no_backprop_mode(), scope(dtype):
            function = Convolution2DGradW(self._function(), W.shape, W.dtype, None)
            return Whole(function.apply((x, gz))[0].array)

    def _function(self) -> Convolution2DFunction:
        return Convolution2DFunction(self.stride, self.pad, False, dilate=self.dilate)


def operation_of(link: chainer.Link) -> Operation | None:
    """Returns a layer's arithmetic; ``None`` for embeddings, which have none.

    Raises:
        TypeError: If it is another kind of link.
        ValueError: If it is a convolution with groups.
    """
    kind = type(link)
    if kind is L.EmbedID:
        return None
    if kind is L.Linear:
        return Linear()
    if kind is L.Convolution2D:
        if link.groups != 1:
            raise ValueError(
                f"a convolution of {link.groups} groups cannot be streamed; of 1 it can"
            )
        return Convolution(_pair(link.stride), _pair(link.pad), _pair(link.dilate))
    *names, last = (f"L.{each.__name__}" for each in STREAMABLE)
    names = f"{', '.join(names)} or {last}"
    raise TypeError(
        f"Streamed({kind.__name__}): expected {names}; other layers stay in memory"
    )


def _pair(value: Any) -> tuple[int, int]:
    return tuple(value) if np.ndim(value) else (value, value)
