"""What travels between stages: tuples of tensors, and how they are described."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


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
    """The shape and dtype of a :class:`Tensor`, by which a receiver allocates it."""

    shape: tuple[int, ...] | None
    dtype: str
    requires_grad: bool | None


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
    """Returns the shapes and dtypes of tensors."""
    return tuple(
        TensorSpec(None, "", requires_grad)
        if array is None
        else TensorSpec(array.shape, array.dtype.str, requires_grad)
        for array, requires_grad in tensors
    )
