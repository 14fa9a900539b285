"""Conversion of values between stages from and to Chainer's variables.

Only tensors travel between ranks, also those in a dictionary: :func:`to_messages`. More
can pass between two graphs of one rank: :func:`detached` keeps constants, and variables
in lists and nested dictionaries.
"""

from __future__ import annotations

import copy
import numbers
from collections.abc import Sequence
from typing import Any, Callable

import chainer
import numpy as np

from divisible.communication.signatures import Tensor, check_plain


def to_message(y: Any, source: str) -> Tensor:
    """Converts an output of a layer for the way to another stage.

    Args:
        y: A variable or an array.
        source: Words for the origin of ``y``, for the error message.

    Raises:
        TypeError: For the reasons of :func:`to_tensor`, or if the array is of a
            subclass.
    """
    tensor = to_tensor(y, source)
    if type(tensor.array) is not np.ndarray:
        check_plain(
            tensor.array, f"plain arrays pass from stage to stage, but {source}"
        )
    return tensor


def to_messages(ys: Sequence[Any], source: str) -> tuple[Tensor, ...]:
    """Converts the outputs of a layer for the way to another stage.

    Args:
        ys: Variables, arrays, and dictionaries of these, whose keys are texts.
        source: Words for the origin of the outputs, for the error message.

    Returns:
        Tensors; those of a dictionary have its position and their key.

    Raises:
        TypeError: For the reasons of :func:`to_message`, or if a dictionary is empty,
            or has other keys or values.

    Example:
        >>> import numpy as np
        >>> [y.key for y in to_messages([np.ones(2), {"h": np.ones(3)}], "it returned")]
        [(), (1, 'h')]
    """
    found = []
    for position, y in enumerate(ys):
        if not isinstance(y, dict):
            found.append(to_message(y, source))
            continue
        if not y or not all(isinstance(key, str) for key in y):
            raise TypeError(
                f"dictionaries with texts as keys pass from stage to stage, but"
                f" {source} one with the keys {[*y]}"
            )
        for key, value in y.items():
            tensor = to_message(value, f"{source} {{{key!r}: ...}} with")
            found.append(tensor._replace(key=(position, key)))
    return tuple(found)


def from_messages(tensors: Sequence[Any]) -> tuple:
    """Returns the outputs that :func:`to_messages` converted, with tensors.

    Example:
        >>> from_messages([Tensor(1), Tensor(2, None, (1, "h")), Tensor(3)])[1]["h"][0]
        2
    """
    found: list[Any] = []
    last = None
    for tensor in tensors:
        key = tensor.key if isinstance(tensor, Tensor) else ()
        if not key:
            found.append(tensor)
        elif last == key[0]:
            found[-1][key[1]] = tensor
        else:
            found.append({key[1]: tensor})
        last = key[0] if key else None
    return tuple(found)


def to_tensor(y: Any, source: str = "the last layer of this one returned") -> Tensor:
    """Converts an output of a layer to a tensor.

    Args:
        y: A variable or an array.
        source: Words for the origin of ``y``, for the error message.

    Raises:
        TypeError: If it is neither a variable nor an array, or if MPI has no type for
            the array's elements.
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
            f"only variables, arrays, and tuples and dictionaries of them pass from"
            f" stage to stage, but {source} {type(y).__name__}"
        )
    return Tensor(y)


def from_tensor(tensor: Tensor) -> Any:
    """Returns the input of a layer: the same as the output of the layer before."""
    if tensor.requires_grad is None:
        return tensor.array
    return chainer.Variable(tensor.array, requires_grad=tensor.requires_grad)


def detached(y: Any) -> Any:
    """Converts an output for a layer on the same rank that has its own graph.

    Args:
        y: Variables, arrays, ``None``, numbers and texts, and tuples, lists and
            dictionaries of them.

    Returns:
        The value with tensors in place of variables and arrays.

    Raises:
        TypeError: If it has anything else.

    Example:
        >>> import numpy as np
        >>> detached([None, {"a": np.zeros(2)}])
        [None, {'a': Tensor(array=array([0., 0.]), requires_grad=None, key=())}]
    """
    if isinstance(y, (tuple, list, dict)):
        return _mapped(detached, y)
    if isinstance(y, (chainer.Variable, *chainer.get_array_types())):
        return Tensor(chainer.as_array(y), getattr(y, "requires_grad", None))
    if y is None or isinstance(y, (str, numbers.Number)):
        return y
    raise TypeError(
        f"between a layer that is recomputed and one that is not, variables, arrays,"
        f" None, numbers, texts, and tuples, lists and dictionaries of them pass, but"
        f" not {type(y).__name__}: mark both layers to be recomputed, or neither"
    )


def attached(y: Any) -> Any:
    """Returns the input of a layer: the value that :func:`detached` converted."""
    if isinstance(y, Tensor):
        return from_tensor(y)
    return _mapped(attached, y) if isinstance(y, (tuple, list, dict)) else y


def copied(y: Any) -> Any:
    """Copies the arrays that belong to no variable in a result of :func:`detached`."""
    if isinstance(y, Tensor):
        is_plain = y.requires_grad is None and y.array is not None
        return y._replace(array=y.array.copy()) if is_plain else y
    return _mapped(copied, y) if isinstance(y, (tuple, list, dict)) else y


def leaves(y: Any) -> list[Any]:
    """Returns all values in tuples, lists and dictionaries, in their order."""
    found: list[Any] = []
    waiting = [y]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += reversed(each.values())
        elif isinstance(each, (tuple, list)) and not isinstance(each, Tensor):
            waiting += reversed(each)
        else:
            found.append(each)
    return found


def _mapped(function: Callable[[Any], Any], y: Any) -> Any:
    if isinstance(y, tuple):
        mapped = map(function, y)
        return y._make(mapped) if hasattr(y, "_make") else tuple(mapped)
    changed = copy.copy(y)
    for key in y if isinstance(y, dict) else range(len(y)):
        changed[key] = function(y[key])
    return changed
