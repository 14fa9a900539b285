"""Contributions to a gradient, which need not be arrays of their own.

``Variable.backward`` makes an array for the weight gradient of each microbatch, and
adds it to the sum. BLAS adds a product to an array that is there at no extra cost, so
the gradient of a weight matrix is told as the product that it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy
from chainer import backend

from chainer_kernels import providers, switch, threads
from chainer_kernels.gemm import gemm
from chainer_kernels.layouts import are_float32
from chainer_kernels.threads import blas_threads

Array = Any


class Scratch:
    """Memory that all who need some for a moment share, one array for each dtype."""

    def __init__(self) -> None:
        self._arrays: dict[numpy.dtype, numpy.ndarray] = {}

    def empty(self, shape: tuple[int, int], dtype: numpy.dtype) -> numpy.ndarray:
        """Returns an array whose values are whatever they are."""
        size = shape[0] * shape[1]
        array = self._arrays.get(dtype)
        if array is None or array.size < size:
            array = self._arrays[dtype] = numpy.empty(size, dtype)
        return array[:size].reshape(shape)


class Contribution(Protocol):
    """A share of a gradient: it overwrites what is there, or is added to it.

    One may have an attribute ``turned``, an :class:`InOtherOrder` or ``None``.
    """

    def write(self, out: Array) -> None:
        """Overwrites an array."""

    def add(self, out: Array, scratch: Scratch) -> None:
        """Adds to an array."""


class InOtherOrder(Protocol):
    """A share that several of which are added up in another order than the gradient's.

    Their sum has the memory of the gradient, and is brought in order at the end.
    """

    def add(self, out: Array, is_first: bool) -> None:
        """Adds to an array in the other order, or overwrites it."""

    @staticmethod
    def bring_in_order(out: Array) -> None:
        """Brings a sum of such shares into the order of the gradient.

        Whoever adds up the shares keeps this function, and so no arrays of a share.
        """


class Whole(NamedTuple):
    """An array that is there, of the gradient's shape; it is only read."""

    array: Array

    def write(self, out: Array) -> None:
        """Overwrites an array."""
        out[...] = self.array

    def add(self, out: Array, scratch: Scratch) -> None:
        """Adds to an array."""
        out += self.array


class Product(NamedTuple):
    """A matrix product, of arrays of the shapes (m, k) and (k, n), and of one dtype.

    The gradient is C contiguous and has the shape (m, n), if all axes but the first
    are flattened.
    """

    a: Array
    b: Array

    def write(self, out: Array) -> None:
        """Overwrites an array."""
        # The product is computed as in the function itself, so the bits are the same.
        if _has_kernel(out):
            providers.active().product(self.a, self.b, out=self._matrix(out))
            return
        backend.get_array_module(self.a).dot(self.a, self.b, out=self._matrix(out))

    def add(self, out: Array, scratch: Scratch) -> None:
        """Adds to an array."""
        out = self._matrix(out)
        if _has_kernel(out) and blas_threads() == 1:
            providers.active().product(self.a, self.b, out=out, accumulate=True)
        elif not isinstance(out, numpy.ndarray):
            out += self.a.dot(self.b)
        elif blas_threads() == 1:
            gemm(self.a, self.b, out, accumulate=True)
        else:
            product = scratch.empty(out.shape, out.dtype)
            with threads.all_blas_threads():
                out += numpy.dot(self.a, self.b, out=product)

    def _matrix(self, out: Array) -> Array:
        return out.reshape(self.a.shape[0], self.b.shape[1])


def _has_kernel(out: Array) -> bool:
    return switch.is_ours() and are_float32(out)
