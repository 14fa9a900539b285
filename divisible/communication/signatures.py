"""Tuples of tensors that travel between stages, and their descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from chainer_kernels.layouts import memory_order


class Tensor(NamedTuple):
    """One array on its way between two stages.

    Attributes:
        array: A NumPy or CuPy array, or ``None`` for a gradient there is not.
        requires_grad (bool or None): Whether the variable it comes from requires a
            gradient; ``None`` for an array that is no variable.
    """

    array: Any
    requires_grad: bool | None = None


#: What one stage hands to the next for one microbatch; empty for one of no samples.
Tensors = tuple


class TensorSpec(NamedTuple):
    """The shape, dtype and memory order of a :class:`Tensor`, as a receiver needs them.

    What a convolution returns on a CPU has its channels last in memory. It arrives so:
    the order in which the next layer adds, and how fast, depend on it.

    Attributes:
        shape: The shape; ``None`` for a gradient there is not.
        dtype: The dtype.
        requires_grad: As the tensor's.
        order: The axes in the order of memory; empty for C order, and where there are
            gaps in it: what is sent then is in C order.
    """

    shape: tuple[int, ...] | None
    dtype: str
    requires_grad: bool | None
    order: tuple[int, ...] = ()

    @property
    def shape_in_memory(self) -> tuple[int, ...]:
        """The shape of what is sent."""
        if not self.order:
            return self.shape
        return tuple(self.shape[axis] for axis in self.order)

    def in_memory(self, array: Any) -> Any:
        """Returns an array as it is sent, in C order unless it has gaps."""
        return array.transpose(self.order) if self.order else array

    def received(self, array: Any) -> Any:
        """Returns what was sent as the array that it was."""
        if not self.order:
            return array
        return array.transpose([self.order.index(axis) for axis in range(array.ndim)])


#: The specs of all tensors of one microbatch.
Signature = tuple


def check_plain(array: Any, source: str) -> None:
    """Refuses arrays of subclasses, which would arrive as plain ones.

    A mask or a product that is a matrix's own would be lost on the way. Of files in
    memory (``numpy.memmap``) nothing is.

    Args:
        array: A NumPy or CuPy array, or ``None``.
        source (str): Where it comes from, for the error.

    Raises:
        TypeError: If it is one.

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
        TensorSpec(None, "", requires_grad)
        if array is None
        else TensorSpec(
            array.shape,
            array.dtype.str,
            requires_grad,
            () if array.flags.c_contiguous else memory_order(array) or (),
        )
        for array, requires_grad in tensors
    )
