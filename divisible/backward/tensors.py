"""Tensors, as they travel between stages, to and from Chainer's variables."""

from __future__ import annotations

from typing import Any

import chainer

from divisible.communication.signatures import Tensor


def to_tensor(y: Any, source: str = "the last layer of this one returned") -> Tensor:
    """Returns what a layer returned, as it travels.

    Args:
        y: A variable or an array.
        source: Where it comes from, for the error.

    Raises:
        TypeError: If it is neither a variable nor an array, or an array of what MPI has
            no type for.
    """
    array = chainer.as_array(y)
    if isinstance(array, chainer.get_array_types()) and array.dtype.kind in "OV":
        raise TypeError(
            f"numbers of NumPy's own types pass from stage to stage, but {source}"
            f" an array of {array.dtype}"
        )
    if isinstance(y, chainer.Variable):
        return Tensor(y.array, y.requires_grad)
    if not isinstance(y, chainer.get_array_types()):
        raise TypeError(
            f"only variables, arrays and tuples of them pass from stage to stage,"
            f" but {source} {type(y).__name__}"
        )
    return Tensor(y)


def from_tensor(tensor: Tensor) -> Any:
    """Returns what a layer is called with: just what the layer before returned."""
    if tensor.requires_grad is None:
        return tensor.array
    return chainer.Variable(tensor.array, requires_grad=tensor.requires_grad)
