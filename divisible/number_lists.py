"""Arguments of users that are one value for all, or a list with one for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from divisible.records import shown


def as_list(values: Any) -> list[Any]:
    """Returns a list of one value, or of the values in a list or tuple.

    Args:
        values: One optimizer, stage or key; or several.

    Example:
        >>> as_list("x"), as_list(["x", "y"]), as_list(())
        (['x'], ['x', 'y'], [])
    """
    return list(values) if isinstance(values, (list, tuple)) else [values]


def numbers(name: str, values: Any) -> np.ndarray:
    """Returns a number, or a list of numbers, as an array of float64.

    Args:
        name: The name of the argument, for errors.
        values: The number, or the list, which may be an array or a list of lists.

    Raises:
        TypeError: If some element is not a number.

    Example:
        >>> numbers("speeds", [1, 2]).tolist(), numbers("speeds", 3).tolist()
        ([1.0, 2.0], 3.0)
    """
    try:
        array = np.asarray(values, float)
    except (OverflowError, TypeError, ValueError):
        array = None
    # NumPy would convert None to NaN.
    if array is None or values is None:
        raise TypeError(
            f"{name} must be a number, or a list of numbers, not {shown(values)}"
        )
    return array


def amount(array: np.ndarray) -> str:
    """Returns the number of elements in words, for errors.

    Example:
        >>> amount(np.ones(1)), amount(np.ones(3)), amount(np.ones((2, 4)))
        ('1 number', '3 numbers', '2 x 4 numbers')
    """
    sides = " x ".join(map(str, array.shape)) or "1"
    return f"{sides} number{'' if sides == '1' else 's'}"
