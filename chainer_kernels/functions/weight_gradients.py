"""Contributions to the gradients of parameters, told without forming them.

Each function here gets a node of Chainer's graph, the inputs that are parameters by
their positions, and the output gradient. It returns by position what to add to their
gradients. Inputs that it leaves out are left to the node's own ``backward``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chainer
import numpy

from chainer_kernels import providers, switch
from chainer_kernels.contributions import Contribution, Product, Rows, Scratch
from chainer_kernels.functions.convolution import is_covered
from chainer_kernels.functions.sums import total
from chainer_kernels.geometry import Geometry, geometry_of
from chainer_kernels.half_precision import widened
from chainer_kernels.layouts import channels_last
from chainer_kernels.product_dtype import FLOAT32, recorded

Array = Any


def linear(
    function: chainer.FunctionNode,
    parameters: Mapping[int, chainer.Parameter],
    gy: Array,
) -> dict[int, Contribution]:
    """Multiplies into the weight gradients of a linear layer by GEMM.

    Args:
        function: A ``LinearFunction``, of x (N, n_in), W (n_out, n_in) and b.
        parameters: The inputs that are parameters, by index.
        gy: Output gradient of shape (N, n_out).
    """
    multiplied = _for_gemm(gy)
    contributions: dict[int, Contribution] = {}
    for i, parameter in parameters.items():
        if not _has_gemm(parameter.array, gy):
            continue
        if i == 1 and _has_gemm(x := function.inputs[0].data, gy):
            dtype = recorded(function)
            contributions[i] = Product(multiplied.T, _for_gemm(x), dtype)
        elif i == 2:
            contributions[i] = Sum(multiplied, (0,))
    return contributions


class Sum(NamedTuple):
    """The gradient of a bias, added up as Chainer's function would.

    Attributes:
        array: The output gradient.
        axis: Axes to add over.
    """

    array: Array
    axis: tuple[int, ...]

    def write(self, out: Array) -> None:
        """Overwrites an array."""
        out[...] = total(self.array, self.axis)

    def add(self, out: Array, scratch: Scratch) -> None:
        """Adds to an array."""
        out += total(self.array, self.axis)

    def joined(self, others: Sequence[Contribution], rows: Rows) -> Sum | None:
        """Returns the sum over all microbatches, if they have the same axes."""
        if any(type(other) is not Sum or other.axis != self.axis for other in others):
            return None
        array = rows.of([each.array for each in (self, *others)])
        return None if array is None else Sum(array, self.axis)


class TurnedWeights(NamedTuple):
    """The gradient of a convolution's weights, whose microbatches are turned but once.

    Attributes:
        weights: The gradient.
    """

    weights: ConvolutionWeights

    def add(self, out: Array, is_first: bool) -> None:
        """Adds to an array as (O, taps, C / groups), or overwrites it."""
        *arrays, dtype = self.weights
        providers.of(dtype).add_turned_weights(*arrays, out, is_first)

    @staticmethod
    def bring_in_order(out: Array) -> None:
        """Brings a sum into the order (O, C / groups, *kernel)."""
        providers.active().turn_weights_back(out)


class ConvolutionWeights(NamedTuple):
    """The gradient of a convolution's weights, added where it is turned around.

    Attributes:
        x: The input, (N, *sizes, C) and contiguous.
        gy: The output gradient, (N, *sizes, O) and contiguous.
        geometry: The convolution's.
        dtype: Dtype to which operands are rounded.
    """

    x: Array
    gy: Array
    geometry: Geometry
    dtype: str = FLOAT32

    @property
    def turned(self) -> TurnedWeights | None:
        """The same in the order in which it is made, where that is another one."""
        x, gy = self.x.shape, self.gy.shape
        is_turned = providers.of(self.dtype).turns_weights(x, gy, self.geometry)
        return TurnedWeights(self) if is_turned else None

    def write(self, out: Array) -> None:
        """Overwrites an array."""
        *arrays, dtype = self
        providers.of(dtype).convolution_weights(*arrays, out=out)

    def add(self, out: Array, scratch: Scratch) -> None:
        """Adds to an array."""
        *arrays, dtype = self
        providers.of(dtype).convolution_weights(*arrays, out=out, accumulate=True)

    def joined(
        self, others: Sequence[Contribution], rows: Rows
    ) -> ConvolutionWeights | None:
        """Returns the gradient for the images of all microbatches, if they are alike.

        A convolution may be called with other strides, or for images of other sizes.
        """
        for other in others:
            is_alike = type(other) is ConvolutionWeights
            if not is_alike or other[2:] != self[2:]:
                return None
        every = [self, *others]
        x, gy = (rows.of([each[i] for each in every]) for i in (0, 1))
        if x is None or gy is None:
            return None
        return self._replace(x=x, gy=gy)


def convolution(
    function: chainer.FunctionNode,
    parameters: Mapping[int, chainer.Parameter],
    gy: Array,
) -> dict[int, Contribution]:
    """Adds to the weight gradients of a convolution.

    Args:
        function: A convolution's node, of x, W and b.
        parameters: The inputs that are parameters, by index.
        gy: Output gradient.
    """
    x = function.inputs[0].data
    return _convolved(function, parameters, x, gy, gy)


def deconvolution(
    function: chainer.FunctionNode,
    parameters: Mapping[int, chainer.Parameter],
    gy: Array,
) -> dict[int, Contribution]:
    """Adds to the weight gradients of a deconvolution.

    A deconvolution computes a convolution backwards. So ``gy`` has the shape of that
    convolution's input, and ``x`` that of its output.

    Args:
        function: A deconvolution's node, of x, W and b.
        parameters: The inputs that are parameters, by index.
        gy: Output gradient.
    """
    # Chainer's own forward leaves this open on a CPU.
    if function.cover_all is None:
        return {}
    x = function.inputs[0].data
    return _convolved(function, parameters, gy, x, gy)


def _convolved(
    function: chainer.FunctionNode,
    parameters: Mapping[int, chainer.Parameter],
    images: Array | None,
    outputs: Array | None,
    gy: Array,
) -> dict[int, Contribution]:
    """Returns the contributions of a convolution from images to outputs."""
    if not switch.is_ours() or images is None or outputs is None:
        return {}
    W = function.inputs[1].data
    geometry = geometry_of(function, W.shape[2:])
    if not is_covered(function, geometry, W.shape, (images, W, outputs)):
        return {}
    contributions: dict[int, Contribution] = {}
    if 1 in parameters:
        contributions[1] = ConvolutionWeights(
            channels_last(images),
            channels_last(outputs),
            geometry,
            recorded(function),
        )
    if 2 in parameters:
        contributions[2] = Sum(gy, (0, *range(2, gy.ndim)))
    return contributions


def _has_gemm(array: Array, gy: Array) -> bool:
    """Tells whether the two can be multiplied into an array that is there."""
    if array.dtype != gy.dtype or type(array) not in _GEMM_ARRAYS:
        return False
    # CuPy cannot add a product of float16 to float32.
    return gy.dtype.char in ("fde" if type(gy) is numpy.ndarray else "fd")


def _for_gemm(array: Array) -> Array:
    """Returns what BLAS multiplies; on a CPU it knows no float16."""
    is_half = array.dtype.char == "e" and type(array) is numpy.ndarray
    return widened(array) if is_half else array


_GEMM_ARRAYS = (numpy.ndarray, chainer.backends.cuda.ndarray)
