"""A minibatch's ``x`` or ``t`` as arrays with equally many samples."""

from __future__ import annotations

from typing import Any

import chainer


def as_arrays(name: str, value: Any, where: str = "") -> tuple:
    """Returns what a user gave as a tuple of arrays with equally many samples.

    Args:
        name (str): What to call it in messages, ``'x'`` or ``'t'``.
        value (array or tuple of arrays): What the user gave.
        where (str): What reads it, for messages; such as ``' on rank 0'``.

    Raises:
        TypeError: If it is missing, or something else than arrays.
        ValueError: If there are no arrays, no samples, or not equally many.

    Example:
        >>> import numpy as np
        >>> [array.shape for array in as_arrays("x", np.ones((6, 4)))]
        [(6, 4)]
    """
    if value is None:
        raise TypeError(f"{name} is None{where}")
    arrays = value if isinstance(value, (tuple, list)) else (value,)
    if not arrays:
        raise ValueError(
            f"{name} is an empty {type(value).__name__}{where}: it needs at least one"
            f" array"
        )
    for array in arrays:
        if not isinstance(array, chainer.get_array_types()):
            raise TypeError(
                f"{name} must be an array or a tuple of arrays, not"
                f" {type(array).__name__}"
            )
        if array.ndim == 0 or len(array) == 0:
            raise ValueError(f"{name} has no samples: its shape is {array.shape}")
        if len(array) != len(arrays[0]):
            raise ValueError(
                f"the arrays of {name} have {len(arrays[0])} and {len(array)} samples"
            )
    return tuple(arrays)
