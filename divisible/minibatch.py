"""Minibatches: as arrays with equally many samples, cut into microbatches, joined."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np

from divisible.communication.signatures import Tensor, Tensors, check_plain


def as_arrays(name: str, value: Any, where: str = "") -> tuple:
    """Returns what a user gave as a tuple of arrays with equally many samples.

    Args:
        name (str): What to call it in messages, ``'x'`` or ``'t'``.
        value (array or tuple of arrays): What the user gave.
        where (str): What reads it, for messages; such as ``' on rank 0'``.

    Raises:
        TypeError: If it is missing, or something else than arrays, or they are of a
            subclass.
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
        check_plain(array, f"{name} is")
        if array.ndim == 0 or len(array) == 0:
            raise ValueError(f"{name} has no samples: its shape is {array.shape}")
        if len(array) != len(arrays[0]):
            raise ValueError(
                f"the arrays of {name} have {len(arrays[0])} and {len(array)} samples"
            )
    return tuple(arrays)


def split(arrays: Sequence[Any], n_microbatches: int) -> list[tuple]:
    """Cuts along the first axis; the first microbatches get one sample more.

    Example:
        >>> [len(part) for part, in split([np.ones((5, 4))], n_microbatches=3)]
        [2, 2, 1]
    """
    ends = list(itertools.accumulate(_sizes(len(arrays[0]), n_microbatches), initial=0))
    return [
        tuple(array[start:end] for array in arrays)
        for start, end in zip(ends, ends[1:])
    ]


def as_tensors(arrays: Sequence[Any], device: chainer.backend.Device) -> Tensors:
    """Returns a microbatch as a message to the first stage; empty if no samples."""
    if len(arrays[0]) == 0:
        return ()
    return tuple(Tensor(device.send(array)) for array in arrays)


def join(outputs: Sequence[Tensors]) -> tuple[np.ndarray, ...]:
    """Returns the outputs of all microbatches as one, on the host."""
    host = chainer.get_device("@numpy")
    columns = [
        [host.send(y) for y, _ in column] for column in zip(*filter(None, outputs))
    ]
    if any(y.ndim == 0 for column in columns for y in column):
        raise TypeError(
            "the last layer returned a scalar for a microbatch: to predict, it must"
            " return samples along the first axis"
        )
    return tuple(map(np.concatenate, columns))


def microbatch_sizes(n_samples: int, n_microbatches: int) -> list[int]:
    """Returns the samples of each microbatch, as the pipeline cuts a minibatch.

    Raises:
        ValueError: If there are more microbatches than samples, or none.

    Example:
        >>> microbatch_sizes(10, 4)
        [3, 3, 2, 2]
    """
    if not 1 <= n_microbatches <= n_samples:
        raise ValueError(
            f"{n_samples} samples cannot be cut into {n_microbatches} microbatches"
        )
    return _sizes(n_samples, n_microbatches)


def value_and_count(returned: Any) -> tuple[Any, Any]:
    """Returns what a loss gives, and how many samples it says that is a mean of.

    Args:
        returned: What the function returned, the loss alone or ``(loss, n)``.

    Example:
        >>> value_and_count((0.5, 3))
        (0.5, 3)
        >>> value_and_count(0.5)
        (0.5, None)
    """
    if isinstance(returned, tuple) and len(returned) == 2:
        return returned
    return returned, None


def _sizes(n_samples: int, n_microbatches: int) -> list[int]:
    """Returns numbers of samples as equal as they come, the larger ones first."""
    each, extra = divmod(n_samples, n_microbatches)
    return [each + (i < extra) for i in range(n_microbatches)]
