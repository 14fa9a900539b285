"""Contributions to a gradient, which need not be arrays of their own.

``Variable.backward`` makes an array for the weight gradient of each microbatch, and
adds it to the sum. BLAS adds a product to an existing array at no extra cost. So a
contribution to a weight matrix is kept as a product of two arrays, which is added
later.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy
from chainer import backend

from chainer_kernels import providers, switch, threads
from chainer_kernels.gemm import gemm
from chainer_kernels.layouts import are_float32
from chainer_kernels.product_dtype import FLOAT32
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


class Rows:
    """Arrays of several microbatches, joined along the first axis.

    Arrays that are asked for twice are joined once.
    """

    def __init__(self) -> None:
        self._joined: dict[tuple[Hashable, ...], Array] = {}

    def of(self, arrays: Sequence[Array]) -> Array | None:
        """Returns one array of all rows; a view where they lie one behind the other.

        Args:
            arrays: Arrays of one kind.

        Returns:
            ``None`` if their dtypes or their axes but the first differ.
        """
        first = arrays[0]
        for array in arrays:
            if array.dtype != first.dtype or array.shape[1:] != first.shape[1:]:
                return None
        key = tuple(map(_memory_of, arrays))
        if key not in self._joined:
            joined = _adjacent(arrays) if type(first) is numpy.ndarray else None
            if joined is None:
                joined = backend.get_array_module(first).concatenate(arrays)
            # The arrays live as long as their memory is a key.
            self._joined[key] = joined, arrays
        return self._joined[key][0]


def _memory_of(array: Array) -> Hashable:
    """Returns what two views of the same elements have in common."""
    if type(array) is not numpy.ndarray:
        return id(array)
    return array.__array_interface__["data"][0], array.shape, array.strides


def _adjacent(arrays: Sequence[numpy.ndarray]) -> numpy.ndarray | None:
    """Returns a view of arrays that are neighbours in one array, or ``None``."""
    first, n_rows = arrays[0], 0
    at = first.__array_interface__["data"][0]
    for array in arrays:
        if (
            array.base is None
            or array.base is not first.base
            or not array.flags.c_contiguous
            or array.__array_interface__["data"][0] != at
        ):
            return None
        at += array.nbytes
        n_rows += len(array)
    shape = n_rows, *first.shape[1:]
    return numpy.lib.stride_tricks.as_strided(first, shape)


class Contribution(Protocol):
    """A share of a gradient: it overwrites what is there, or is added to it.

    One may have an attribute ``turned``, an :class:`InOtherOrder` or ``None``. One that
    can be computed together with those of other microbatches has a method ``joined``,
    which gets these and a :class:`Rows`. It returns the contribution of all; ``None``
    if they do not fit together.
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

    @property
    def bring_in_order(self) -> Callable[[Array], None]:
        """The function that brings a sum of shares into the order of the gradient.

        Shares of which it is the same have the same order. Whoever adds up the shares
        keeps the function, and so no arrays of a share.
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

    Attributes:
        a: The left matrix.
        b: The right matrix.
        dtype: Dtype to which matrices of float32 are rounded.
    """

    a: Array
    b: Array
    dtype: str = FLOAT32

    def write(self, out: Array) -> None:
        """Overwrites an array."""
        # The product is computed as in the function itself, so the bits are the same.
        if _has_kernel(out):
            providers.of(self.dtype).product(self.a, self.b, out=self._matrix(out))
            return
        backend.get_array_module(self.a).dot(self.a, self.b, out=self._matrix(out))

    def add(self, out: Array, scratch: Scratch) -> None:
        """Adds to an array."""
        out = self._matrix(out)
        is_single = self.dtype == FLOAT32
        if _has_kernel(out) and (blas_threads() == 1 or not is_single):
            provider = providers.of(self.dtype)
            provider.product(self.a, self.b, out=out, accumulate=True)
        elif not isinstance(out, numpy.ndarray):
            out += self.a.dot(self.b)
        elif blas_threads() == 1:
            gemm(self.a, self.b, out, accumulate=True)
        else:
            product = scratch.empty(out.shape, out.dtype)
            with threads.all_blas_threads():
                out += numpy.dot(self.a, self.b, out=product)

    def joined(self, others: Sequence[Contribution], rows: Rows) -> Product | None:
        """Returns the product of all rows, if they fit; ``a`` has them as columns."""
        for other in others:
            if type(other) is not Product or other.dtype != self.dtype:
                return None
        every = [self, *others]
        a = rows.of([each.a.T for each in every])
        b = rows.of([each.b for each in every])
        return None if a is None or b is None else Product(a.T, b, self.dtype)

    def _matrix(self, out: Array) -> Array:
        return out.reshape(self.a.shape[0], self.b.shape[1])


def _has_kernel(out: Array) -> bool:
    return switch.is_ours() and are_float32(out)
