"""Arguments with places for arrays, which are values of a chain.

::

    h[:, mask]      slices = (slice(None), mask)
                    taken out: (slice(None), input[1]) and the array mask
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import chainer


@dataclass(frozen=True)
class Slot:
    """Place of an array among other arguments.

    Attributes:
        number: Position of the array among the inputs of the call.
    """

    number: int

    def __repr__(self) -> str:
        return f"input[{self.number}]"


def take_out(value: Any, arrays: list[Any]) -> Any:
    """Returns a value with a :class:`Slot` in place of each array.

    Args:
        value: Any value; arrays are replaced in nested tuples, lists and dictionaries.
        arrays (list): The arrays are appended to it.

    Example:
        >>> import numpy as np
        >>> found = []
        >>> take_out((1, [np.zeros(2)]), found), len(found)
        ((1, [input[0]]), 1)
    """
    if isinstance(value, chainer.get_array_types()):
        arrays.append(value)
        return Slot(len(arrays) - 1)
    if type(value) in (tuple, list):
        return type(value)(take_out(each, arrays) for each in value)
    if type(value) is dict:
        return {key: take_out(each, arrays) for key, each in value.items()}
    return value


def put_in(value: Any, arrays: Sequence[Any]) -> Any:
    """Returns a value with the arrays in place of each :class:`Slot`.

    Example:
        >>> put_in((1, [Slot(0)]), ["a"])
        (1, ['a'])
    """
    if isinstance(value, Slot):
        return arrays[value.number]
    if type(value) in (tuple, list):
        return type(value)(put_in(each, arrays) for each in value)
    if type(value) is dict:
        return {key: put_in(each, arrays) for key, each in value.items()}
    return value


def has_slots(value: Any) -> bool:
    """Returns whether a value has a :class:`Slot` in it."""
    if type(value) is dict:
        return any(map(has_slots, value.values()))
    if type(value) in (tuple, list):
        return any(map(has_slots, value))
    return isinstance(value, Slot)


def first_slot(value: Any) -> int:
    """Returns the lowest number of a :class:`Slot` in a value that has one.

    Example:
        >>> first_slot((slice(None), [Slot(2), Slot(1)]))
        1
    """
    if isinstance(value, Slot):
        return value.number
    inner = value.values() if isinstance(value, dict) else value
    return min(first_slot(each) for each in inner if has_slots(each))
