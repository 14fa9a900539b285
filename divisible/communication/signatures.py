"""Tuples of tensors that travel between stages, and their descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from chainer_kernels.layouts import memory_order


class Tensor(NamedTuple):
    """One array on its way between two stages.

    Attributes:
        array: A NumPy or CuPy array, or ``None`` for a missing gradient.
        requires_grad (bool or None): Whether the array's variable requires a gradient;
            ``None`` for an array that belongs to no variable.
        key: Position of a dictionary among the outputs of a layer, and the array's key
            in it; empty for an array that is an output by itself.
    """

    array: Any
    requires_grad: bool | None = None
    key: tuple = ()


#: The tensors from one stage to the next for one microbatch; empty without samples.
Tensors = tuple


class TensorSpec(NamedTuple):
    """The shape, dtype and memory order of a :class:`Tensor`, as a receiver needs them.

    The result of a convolution on a CPU has its channels last in memory. It arrives in
    the same order, which decides the order of additions in the next layer, and its
    speed.

    Attributes:
        shape: The shape; ``None`` for a missing gradient.
        dtype: The dtype.
        requires_grad: The tensor's ``requires_grad``.
        order: The axes in the order of memory. Empty for C order. An array with gaps in
            memory is sent in C order.
        wire: Name of the dtype in which the array travels; empty for its own.
        key: The tensor's ``key``.
    """

    shape: tuple[int, ...] | None
    dtype: str
    requires_grad: bool | None
    order: tuple[int, ...] = ()
    wire: str = ""
    key: tuple = ()

    @property
    def shape_in_memory(self) -> tuple[int, ...]:
        """The shape of the array as it is sent."""
        if not self.order:
            return self.shape
        return tuple(self.shape[axis] for axis in self.order)

    def in_memory(self, array: Any) -> Any:
        """Returns an array with its axes in the order of memory, as it is sent."""
        return array.transpose(self.order) if self.order else array

    def received(self, array: Any) -> Any:
        """Returns a received array with its axes in their order."""
        if not self.order:
            return array
        return array.transpose([self.order.index(axis) for axis in range(array.ndim)])


#: The specs of all tensors of one microbatch.
Signature = tuple


def check_plain(array: Any, source: str) -> None:
    """Refuses arrays of subclasses, which would arrive as plain ones.

    A masked array would lose its mask on the way, and a matrix its product. A file in
    memory (``numpy.memmap``) loses nothing.

    Args:
        array: A NumPy or CuPy array, or ``None``.
        source (str): Words for the origin of the array, such as ``'x is'``.

    Raises:
        TypeError: If the array is of such a subclass.

    Example:
        >>> import numpy as np
        >>> check_plain(np.ones(2), "x is")
    """
    kind = type(array)
    if kind.__name__ in ("ndarray", "memmap"):
        return
    if any(base.__name__ == "ndarray" for base in kind.__mro__):
        raise TypeError(
            f"{source} a {kind.__name__}: arrays of subclasses would lose what they add"
            f" to numpy.ndarray on their way; make it a plain array, such as by"
            f" numpy.asarray or filled"
        )


def signature(tensors: Sequence[Tensor]) -> Signature:
    """Returns the shapes, dtypes and memory orders of tensors.

    Example:
        >>> import numpy as np
        >>> channels_last = np.zeros((2, 5, 5, 3), 'f').transpose(0, 3, 1, 2)
        >>> signature([Tensor(channels_last)])[0].order
        (0, 2, 3, 1)
    """
    return tuple(
        TensorSpec(None, "", requires_grad, key=key)
        if array is None
        else TensorSpec(
            array.shape,
            array.dtype.str,
            requires_grad,
            () if array.flags.c_contiguous else memory_order(array) or (),
            key=key,
        )
        for array, requires_grad, key in tensors
    )


def is_like(message: Sequence[Tensor], agreed: Signature) -> bool:
    """Returns whether a message of plain arrays has a signature."""
    if len(message) != len(agreed):
        return False
    for (array, requires_grad, key), spec in zip(message, agreed):
        if (
            array is None
            or array.shape != spec.shape
            or array.dtype.str != spec.dtype
            or requires_grad != spec.requires_grad
            or key != spec.key
            or spec.order
            or not array.flags.c_contiguous
        ):
            return False
    return True
