"""Arrays that a computational graph keeps alive, and the memory that they need.

Some of them may be rounded to bfloat16 while they wait for the backward, others not::

    float32, 16 KiB or more     rounded
    smaller                     as it is: the statistics of batch normalization
    masks of dropout            as they are: a factor of all gradients
    what F.max and F.min keep   as it is: their backward searches equal numbers
    what F.mean_squared_error   as it is: their backward subtracts near numbers
      and others like it keep
    probabilities of F.softmax  as they are: its backward subtracts 1 from them; the
      _cross_entropy              logits are rounded
    what PyTorch's graph keeps  as it is
    other dtypes                as they are
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet
from typing import Any

import numpy as np
from chainer.functions.loss.contrastive import Contrastive
from chainer.functions.loss.huber_loss import HuberLoss
from chainer.functions.loss.mean_squared_error import MeanSquaredError
from chainer.functions.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from chainer.functions.loss.squared_error import SquaredError
from chainer.functions.loss.triplet import Triplet
from chainer.functions.math.minmax import SelectorBase

from divisible.backward.graph_functions import (
    arrays_of,
    functions_behind,
    kept_elsewhere,
)

#: Dtypes in which activations of float32 may wait for their backward.
HOLD_DTYPES = FULL, HALF = ("float32", "bfloat16")
#: Bytes from which on an array of float32 is rounded.
SMALLEST_ROUNDED = 1 << 14
# Attribute in which Chainer's functions keep factors that are drawn.
_MASK = "mask"
# Functions whose backward compares or subtracts the arrays that they keep. A difference
# of near numbers would be nothing but the error of their rounding.
_EXACT = (SelectorBase, MeanSquaredError, SquaredError, HuberLoss, Contrastive, Triplet)


class BufferSet(MutableSet):
    """A set of the buffers behind arrays; views of one buffer count once.

    Args:
        arrays: NumPy or CuPy arrays; ``None`` is left out.

    Example:
        >>> import numpy as np
        >>> x = np.zeros((4, 4), np.float32)
        >>> BufferSet([x, x[1:], x.reshape(16)]).nbytes
        64
    """

    def __init__(self, arrays: Iterable[Any] = ()) -> None:
        # The buffers are kept as well, so that no id is used twice.
        self._owners: dict[int, Any] = {}
        for array in arrays:
            self.add(array)

    def add(self, array: Any) -> None:
        """Adds the buffer behind an array."""
        if array is not None:
            owner = buffer_of(array)
            self._owners[_key(owner)] = owner

    def discard(self, array: Any) -> None:
        """Removes the buffer behind an array, if it is in the set."""
        self._owners.pop(_key(buffer_of(array)), None)

    def __contains__(self, array: Any) -> bool:
        return _key(buffer_of(array)) in self._owners

    def __iter__(self) -> Iterator[Any]:
        return iter(self._owners.values())

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def nbytes(self) -> int:
        """The size of all buffers together."""
        return sum(
            owner.nbytes if hasattr(owner, "nbytes") else owner.size for owner in self
        )


def retained_arrays(outputs: Iterable[Any]) -> Iterator[Any]:
    """Yields the arrays that the graph behind some outputs keeps for its backward.

    Args:
        outputs: Outputs of a forward; all but variables are ignored.
    """
    for function in functions_behind(outputs):
        yield from arrays_of(function)


def holds_elsewhere(outputs: Iterable[Any]) -> bool:
    """Returns whether the graph of another library keeps arrays behind some outputs.

    Args:
        outputs: Outputs of a forward, as for :func:`retained_arrays`.
    """
    kept = (kept_elsewhere(function) for function in functions_behind(outputs))
    return any(True for arrays in kept for _ in arrays)


def exact_arrays(function: Any) -> Iterator[Any]:
    """Yields the arrays of a function that rounding would falsify, some of them None.

    Args:
        function: Function of a graph, a ``FunctionNode``.
    """
    own = getattr(function, "function", function)
    yield from (getattr(each, _MASK, None) for each in (function, own))
    if isinstance(function, _EXACT):
        yield from (x.data for x in function.inputs)
        yield from function._retained_output_data or ()
    elif isinstance(function, SoftmaxCrossEntropy):
        yield function.y


def rounded_buffers(outputs: Iterable[Any], others: Iterable[Any] = ()) -> BufferSet:
    """Returns the buffers behind retained arrays that are rounded while they wait.

    Args:
        outputs: Outputs of a forward, as for :func:`retained_arrays`.
        others: Arrays that are held besides, such as inputs and outputs of a stage.
    """
    outputs, exact = list(outputs), BufferSet()
    for function in functions_behind(outputs):
        for array in (*exact_arrays(function), *kept_elsewhere(function)):
            exact.add(array)
    arrays = [*retained_arrays(outputs), *others]
    return (
        BufferSet(a for a in arrays if a is not None and is_rounded(a.dtype, a.nbytes))
        - exact
    )


def is_rounded(dtype: np.dtype, n_bytes: int) -> bool:
    """Returns whether an array that waits is rounded, unless it is an exact one."""
    return dtype == np.float32 and n_bytes >= SMALLEST_ROUNDED


def _key(owner: Any) -> int:
    """Returns the address of a buffer, which several arrays may share unseen."""
    interface = getattr(owner, "__array_interface__", None)
    return id(owner) if interface is None else interface["data"][0]


def buffer_of(array: Any) -> Any:
    """Returns the buffer behind an array, or a buffer itself."""
    memory = getattr(array, "data", None)
    if hasattr(memory, "mem"):  # CuPy
        return memory.mem
    while isinstance(getattr(array, "base", None), type(array)):
        array = array.base
    return array
