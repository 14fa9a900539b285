"""Arrays that a computational graph keeps alive, and the memory that they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet
from typing import Any

import chainer

from divisible.backward.graph_walk import functions_behind


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
            self._owners[id(owner)] = owner

    def discard(self, array: Any) -> None:
        """Removes the buffer behind an array, if it is in the set."""
        self._owners.pop(id(buffer_of(array)), None)

    def __contains__(self, array: Any) -> bool:
        return id(buffer_of(array)) in self._owners

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

    These are the inputs and outputs that functions retain, parameters included, and
    arrays that functions have as attributes, such as the mask of dropout.

    Args:
        outputs: Outputs of a forward; all but variables are ignored.
    """
    for function in functions_behind(outputs):
        yield from (x.data for x in function.inputs)
        yield from function._retained_output_data or ()
        yield from _attributes(function)
        if isinstance(function, chainer.function.FunctionAdapter):
            yield from _attributes(function.function)


def _attributes(function: Any) -> Iterator[Any]:
    arrays = chainer.get_array_types()
    for value in vars(function).values():
        values = value if isinstance(value, (tuple, list)) else (value,)
        for item in values:
            if isinstance(item, arrays):
                yield item


def buffer_of(array: Any) -> Any:
    """Returns the buffer behind an array, or a buffer itself."""
    memory = getattr(array, "data", None)
    if hasattr(memory, "mem"):  # CuPy
        return memory.mem
    while isinstance(getattr(array, "base", None), type(array)):
        array = array.base
    return array
