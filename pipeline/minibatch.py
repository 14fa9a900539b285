"""Minibatches as arrays, and cut into microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chainer


def as_arrays(name: str, value: Any, rank: int, reader: str) -> tuple:
    """Returns an ``x`` or ``t`` as a tuple of arrays with equally many samples.

    Args:
        name (str): What to call it in messages.
        value: What the user gave.
        rank (int): This rank.
        reader (str): Why this rank reads it.
    """
    if value is None:
        raise TypeError(
            f"{name} is None on rank {rank}, which has {reader} and reads it"
        )
    arrays = value if isinstance(value, (tuple, list)) else (value,)
    if not arrays:
        raise ValueError(
            f"{name} is an empty {type(value).__name__} on rank {rank}, which has"
            f" {reader} and reads it: it needs at least one array"
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


def split(arrays: Sequence[Any], n_microbatches: int) -> list[tuple]:
    """Cuts along the first axis; the first microbatches get one sample more."""
    n = len(arrays[0])
    each, extra = divmod(n, n_microbatches)
    ends = [i * each + min(i, extra) for i in range(n_microbatches + 1)]
    return [
        tuple(array[start:end] for array in arrays)
        for start, end in zip(ends, ends[1:])
    ]
