"""Arrays of NumPy that record the operations on them.

::

    def forward(self, x):                  x is a TracedArray
        mask = (x >= 0)[:, None]           two operations, each with a traced result
        h = self.embed(x)                  nothing is recorded within calls of links
        return self.out(h * mask)

An array of a subclass reaches Chainer's functions as any array does. Operations on it
are recorded only where the tape is on: outside of the calls that become layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, Protocol

import chainer
import numpy as np

from divisible.chains.array_operations import ArrayOperation, Method
from divisible.chains.slots import take_out


class Tape(Protocol):
    """Records the operations."""

    @property
    def is_on(self) -> bool:
        """Whether operations are recorded now."""

    def note(
        self, operation: ArrayOperation, inputs: tuple, outputs: tuple[Any, ...]
    ) -> None:
        """Records an operation with its arrays, and the arrays that it returned."""

    def refuse_change(self) -> None:
        """Raises the error of a forward that changes an array in place."""

    def refuse_number(self) -> None:
        """Raises the error of a forward that makes a number of an array's values."""


class TracedArray(np.ndarray):
    """An array that records the operations on it; made by :func:`traced`."""

    _tape: Tape | None = None
    #: Whether it was made of sizes alone, as zeros are, and no call has read it.
    _is_made = False

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        """Applies an elementwise operation, and records it."""
        if any(isinstance(each, chainer.Variable) for each in inputs):
            return NotImplemented
        tape = _tape_of((inputs, kwargs))
        out = kwargs.get("out")
        if out is not None and method == "__call__" and len(out) == 1:
            return _in_place(tape, ufunc, inputs, kwargs)
        if out is not None or method == "at":
            if tape is not None:
                tape.refuse_change()
            result = getattr(ufunc, method)(*_plain(inputs), **_plain(kwargs))
            return result if out is None else out[0]
        call = ufunc if method == "__call__" else getattr(ufunc, method)
        return _apply(tape, call, inputs, kwargs)

    def __array_function__(
        self, function: Callable, types: Any, args: tuple, kwargs: dict
    ) -> Any:
        """Calls a function of NumPy, and records it."""
        tape = _tape_of((args, kwargs))
        changes = kwargs.get("out") is not None or function in _CHANGING
        if tape is not None and changes:
            tape.refuse_change()
        if function in (np.reshape, np.broadcast_to):
            return _to_shape(tape, function, args, kwargs)
        return _apply(tape, function, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        """Returns a part of the array, and records it."""
        return _apply(_tape_of((self, key)), _getitem, (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        """Changes the array, and records it."""
        tape = _tape_of((self, key, value))
        arrays: list[Any] = []
        before = self._before_change(tape)
        slots = take_out((before, key, chainer.as_array(value)), arrays)
        changed, part = _plain(self), _plain(chainer.as_array(value))
        completes = _is_same_part(changed[_plain(key)], part)
        changed[_plain(key)] = part
        if tape is not None:
            operation = ArrayOperation(_with_items, slots, {})
            operation.in_place, operation.completes = True, completes
            tape.note(operation, tuple(arrays), (changed,))

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """Returns the array in another shape, and records it."""
        size = shape[0] if len(shape) == 1 else shape
        return _to_shape(_tape_of(self), Method("reshape"), (self, size), kwargs)

    @property
    def T(self) -> Any:
        """The transposed array."""
        return self.transpose()

    def __repr__(self) -> str:
        """Returns the text of the plain array, whose numbers no layer reads."""
        return repr(_plain(self))

    def __str__(self) -> str:
        """Returns the text of the plain array, whose numbers no layer reads."""
        return str(_plain(self))

    def _before_change(self, tape: Tape | None) -> Any:
        """Returns the array as it is before a change that a tape records."""
        if tape is None or not self._is_made:
            return self
        self._is_made = False
        return _plain(self).copy()


def traced(array: np.ndarray, tape: Tape) -> TracedArray:
    """Returns an array with the same memory that records operations on a tape."""
    found = array.view(TracedArray)
    found._tape = tape
    return found


def apply(function: Callable, args: tuple, kwargs: dict) -> Any:
    """Calls a function; records it if an array among its arguments is traced."""
    return _apply(_tape_of((args, kwargs)), function, args, kwargs)


def made(array: np.ndarray, tape: Tape) -> TracedArray:
    """Returns an array of sizes alone, which is recorded once an input changes it."""
    found = traced(array, tape)
    found._is_made = True
    return found


def _getitem(array: Any, key: Any) -> Any:
    return array[key]


_getitem.__name__ = "getitem"


def _with_items(array: Any, key: Any, value: Any) -> Any:
    """Returns a copy of an array with some elements replaced."""
    changed = array.copy()
    changed[key] = value
    return changed


_with_items.__name__ = "setitem"


def _is_same_part(a: Any, b: Any) -> bool:
    """Returns whether two arrays show the same memory in the same way."""
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return False
    return a.__array_interface__ == b.__array_interface__


class _InDtype:
    """An elementwise operation whose result has the dtype of the array it replaces."""

    def __init__(self, ufunc: np.ufunc, dtype: np.dtype) -> None:
        self.__name__ = ufunc.__name__
        self._ufunc, self._dtype = ufunc, dtype

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ufunc(*args, **kwargs).astype(self._dtype, copy=False)


def _in_place(tape: Tape | None, ufunc: np.ufunc, inputs: tuple, kwargs: dict) -> Any:
    """Applies an operation such as ``x += 1``; records it as one with a new result.

    The memory stands for the new value from here on.
    """
    others = dict(kwargs)
    (out,) = others.pop("out")
    arrays: list[Any] = []
    if isinstance(out, TracedArray):
        before = out._before_change(tape)
        inputs = tuple(before if each is out else each for each in inputs)
    slots = take_out(inputs, arrays), take_out(others, arrays)
    changed = _plain(out)
    ufunc(*_plain(inputs), **_plain(others), out=changed)
    if tape is not None:
        operation = ArrayOperation(_InDtype(ufunc, changed.dtype), *slots)
        operation.in_place = True
        tape.note(operation, tuple(arrays), (changed,))
    return out


# Functions that change their first argument.
_CHANGING = {np.copyto, np.put, np.place, np.putmask, np.fill_diagonal}

_METHODS = """
    all any argmax argmin argpartition argsort astype clip compress copy cumprod cumsum
    diagonal dot flatten max mean min nonzero prod ravel repeat round squeeze std sum
    swapaxes take trace transpose var
"""
_CHANGING_METHODS = "fill partition put resize sort"
_NUMBERS = "__bool__ __complex__ __float__ __index__ __int__ item tolist"


def _recorded(name: str) -> Callable:
    method = Method(name)

    def run(self: TracedArray, *args: Any, **kwargs: Any) -> Any:
        return _apply(_tape_of((self, args, kwargs)), method, (self, *args), kwargs)

    run.__name__ = name
    run.__doc__ = f"Calls the method ``{name}``, and records it."
    return run


def _refused(name: str, refuse: str) -> Callable:
    def run(self: TracedArray, *args: Any, **kwargs: Any) -> Any:
        tape = _tape_of((self, args, kwargs))
        if tape is not None:
            getattr(tape, refuse)()
        return getattr(_plain(self), name)(*_plain(args), **_plain(kwargs))

    run.__name__ = name
    run.__doc__ = f"Calls the method ``{name}``, where nothing is recorded."
    return run


for _name in _METHODS.split():
    setattr(TracedArray, _name, _recorded(_name))
for _name in _CHANGING_METHODS.split():
    setattr(TracedArray, _name, _refused(_name, "refuse_change"))
for _name in _NUMBERS.split():
    setattr(TracedArray, _name, _refused(_name, "refuse_number"))


def _apply(tape: Tape | None, function: Callable, args: tuple, kwargs: dict) -> Any:
    """Applies a function to plain arrays; records it if there is a tape."""
    plain = _plain(args)
    result = function(*plain, **_plain(kwargs))
    if tape is None:
        return _made_too(result, (args, kwargs))
    if plain and result is plain[0]:
        # The array itself, by astype(copy=False) of the same type.
        return args[0]
    arrays: list[Any] = []
    slots = take_out(args, arrays), take_out(kwargs, arrays)
    return _noted(tape, ArrayOperation(function, *slots), arrays, result)


def _made_too(result: Any, arguments: tuple) -> Any:
    """Returns a result of made arrays as made ones."""
    tape = _tape_of(arguments, is_made=True)
    if tape is None or type(result) is not np.ndarray:
        return result
    return made(result, tape)


def _to_shape(tape: Tape | None, function: Callable, args: tuple, kwargs: dict) -> Any:
    """Applies a reshape or a broadcast; records the shape of its result."""
    result = function(*_plain(args), **_plain(kwargs))
    if tape is None or not isinstance(args[0], TracedArray):
        return _made_too(result, (args, kwargs))
    others = {key: value for key, value in kwargs.items() if key not in _SHAPES}
    arrays: list[Any] = []
    slot = take_out(args[0], arrays)
    operation = ArrayOperation.to_shape(function, slot, result.shape, others)
    return _noted(tape, operation, arrays, result)


# Names that the argument of a shape has had.
_SHAPES = ("shape", "newshape")


def _noted(
    tape: Tape, operation: ArrayOperation, arrays: Iterable[Any], result: Any
) -> Any:
    """Records an operation; returns its result with traced arrays."""
    several = isinstance(result, (tuple, list))
    outputs = tuple(result) if several else (result,)
    if not all(isinstance(each, np.ndarray) for each in outputs):
        # Sizes, as of np.shape, are integers of Python.
        numbers = any(isinstance(each, (np.generic, bool, float)) for each in outputs)
        if numbers or operation.name == "count_nonzero":
            tape.refuse_number()
        return result
    tape.note(operation, tuple(arrays), outputs)
    found = [traced(each, tape) for each in outputs]
    return type(result)(found) if several else found[0]


def _tape_of(value: Any, is_made: bool = False) -> Tape | None:
    """Returns the tape of an array in a value, if it is on.

    Args:
        value: Any value.
        is_made (bool): Whether to find arrays that were made of sizes, not the others.
    """
    if isinstance(value, TracedArray):
        is_wanted = value._tape is not None and value._is_made == is_made
        return value._tape if is_wanted and value._tape.is_on else None
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return None
    return next(filter(None, (_tape_of(each, is_made) for each in value)), None)


def _plain(value: Any) -> Any:
    """Returns a value with plain arrays in place of traced ones."""
    if isinstance(value, TracedArray):
        return value.view(np.ndarray)
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {key: _plain(each) for key, each in value.items()}
    return value
