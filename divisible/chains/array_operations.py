"""Operations of NumPy on arrays, between the links of a chain.

::

    mask = (x >= 0)[:, :, None]     greater_equal(input[0], 0)
                                    getitem(input[0], (slice(None), slice(None), None))
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import chainer

from divisible.chains.slots import put_in


class Method:
    """A method of arrays, by its name, for arrays of NumPy and of CuPy.

    Example:
        >>> import numpy as np
        >>> Method("sum")(np.ones((2, 3)), axis=0).tolist()
        [2.0, 2.0, 2.0]
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, array: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the method of an array."""
        return getattr(array, self.__name__)(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and other.__name__ == self.__name__

    def __hash__(self) -> int:
        return hash(self.__name__)


class ArrayOperation:
    """An operation on arrays, with its other arguments; also a layer.

    Args:
        function: Function that NumPy and CuPy dispatch, or a :class:`Method`.
        args: Arguments by position, with a slot in place of each array.
        kwargs: Arguments by name, with slots as well.

    Attributes:
        makes_shape (bool): Whether the argument ``shape`` is the shape of the result.
        in_place (bool): Whether the forward changed an array, whose memory has the
            result.
        completes (bool): Whether ``y[0] += 1`` has changed a part before, and gives it
            to the array that it is a part of.

    Example:
        >>> import numpy as np
        >>> from divisible.chains.slots import Slot
        >>> operation = ArrayOperation(np.greater_equal, (Slot(0), 0), {})
        >>> operation, operation(np.array([-1, 2])).tolist()
        (greater_equal(input[0], 0), [False, True])
    """

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping
    ) -> None:
        self._function = function
        self._n_args = len(args)
        self._names = tuple(kwargs)
        self.makes_shape = False
        self.in_place = False
        self.completes = False
        # One attribute for each argument, as functions of Chainer have.
        for i, value in enumerate(args):
            setattr(self, f"argument_{i}", value)
        for name, value in kwargs.items():
            setattr(self, name, value)

    @classmethod
    def to_shape(
        cls, function: Callable[..., Any], slot: Any, shape: tuple, kwargs: Mapping
    ) -> ArrayOperation:
        """Returns a reshape or a broadcast to a shape."""
        operation = cls(function, (slot,), {})
        operation._function = _ToShape(function, kwargs)
        operation._names = ("shape",)
        operation.shape = shape
        operation.makes_shape = True
        return operation

    @property
    def name(self) -> str:
        """Name of the function."""
        return self._function.__name__

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by the names of the attributes."""
        names = [f"argument_{i}" for i in range(self._n_args)] + [*self._names]
        return {name: getattr(self, name) for name in names}

    def is_like(self, other: Any) -> bool:
        """Returns whether another operation has the same function."""
        return isinstance(other, ArrayOperation) and self.name == other.name

    def following(self, follows: Mapping[str, Any]) -> ArrayOperation:
        """Returns the operation with other arguments."""
        changed = copy.copy(self)
        vars(changed).update(follows)
        return changed

    def __call__(self, *inputs: Any) -> Any:
        """Applies the operation to arrays, or to the arrays of variables."""
        arrays = [chainer.as_array(x) for x in inputs]
        args = [getattr(self, f"argument_{i}") for i in range(self._n_args)]
        kwargs = {name: getattr(self, name) for name in self._names}
        result = self._function(
            *[put_in(each, arrays) for each in args],
            **{name: put_in(each, arrays) for name, each in kwargs.items()},
        )
        return tuple(result) if isinstance(result, list) else result

    def __repr__(self) -> str:
        args = [repr(getattr(self, f"argument_{i}")) for i in range(self._n_args)]
        args += [f"{name}={getattr(self, name)!r}" for name in self._names]
        return f"{self.name}({', '.join(args)})"


class _ToShape:
    """A reshape or a broadcast, with the shape by name."""

    def __init__(self, function: Callable[..., Any], kwargs: Mapping) -> None:
        self.__name__ = function.__name__
        self._function = function
        self._kwargs = dict(kwargs)

    def __call__(self, array: Any, shape: tuple) -> Any:
        return self._function(array, shape, **self._kwargs)
