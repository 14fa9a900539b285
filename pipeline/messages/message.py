"""What travels between stages: tuples of tensors, and how they are described."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import chainer


class Tensor(NamedTuple):
    """One array on its way between two stages.

    Attributes:
        array: A NumPy or CuPy array, or ``None`` for a gradient there is not.
        requires_grad (bool or None): Whether the variable it comes from requires a
            gradient; ``None`` for an array that is no variable.
    """

    array: Any
    requires_grad: bool | None = None

    @classmethod
    def of(cls, y: Any, source: str = "the last layer of this one returned") -> Tensor:
        """Returns what a layer returned.

        Args:
            y: A variable or an array.
            source (str): Where it comes from, for the error.

        Raises:
            TypeError: If it is neither a variable nor an array, or an array of what
                MPI has no type for.
        """
        array = chainer.as_array(y)
        if isinstance(array, chainer.get_array_types()) and array.dtype.kind in "OV":
            raise TypeError(
                f"numbers of NumPy's own types pass from stage to stage, but {source}"
                f" an array of {array.dtype}"
            )
        if isinstance(y, chainer.Variable):
            return cls(y.array, y.requires_grad)
        if not isinstance(y, chainer.get_array_types()):
            raise TypeError(
                f"only variables, arrays and tuples of them pass from stage to stage,"
                f" but {source} {type(y).__name__}"
            )
        return cls(y)

    def value(self) -> Any:
        """Returns what a layer is called with: just what the layer before returned."""
        if self.requires_grad is None:
            return self.array
        return chainer.Variable(self.array, requires_grad=self.requires_grad)


#: What one stage hands to the next for one microbatch; empty for one of no samples.
Tensors = tuple


class TensorSpec(NamedTuple):
    """What a receiver must know of a :class:`Tensor` to allocate it."""

    shape: tuple[int, ...] | None
    dtype: str
    requires_grad: bool | None


#: The specs of all tensors of one microbatch.
Signature = tuple


def signature(tensors: Sequence[Tensor]) -> Signature:
    """Returns the shapes and dtypes of tensors."""
    return tuple(
        TensorSpec(None, "", requires_grad)
        if array is None
        else TensorSpec(array.shape, array.dtype.str, requires_grad)
        for array, requires_grad in tensors
    )
