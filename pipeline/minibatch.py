"""Minibatches cut into microbatches, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np

from divisible.communication.signatures import Tensor, Tensors


def split(arrays: Sequence[Any], n_microbatches: int) -> list[tuple]:
    """Cuts along the first axis; the first microbatches get one sample more.

    Example:
        >>> [len(part) for part, in split([np.ones((5, 4))], n_microbatches=3)]
        [2, 2, 1]
    """
    n = len(arrays[0])
    each, extra = divmod(n, n_microbatches)
    ends = [i * each + min(i, extra) for i in range(n_microbatches + 1)]
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
