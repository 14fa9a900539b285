"""Minibatches of other sizes than the example, which a chain may accept.

::

    example (4, 6)          sentences of 6 words    (4, 7), (4, 13)
    example (4, 3, 8, 8)    images                  (4, 3, 9, 8), (4, 3, 17, 8), ...
                            square images           (4, 3, 9, 9), (4, 3, 17, 17)
                            if sizes must be even   (4, 3, 16, 16)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import chainer

from divisible.chains.calls import Recording

#: Position of an input, and one of its axes behind the samples.
_Axis = tuple[int, int]


class Example(NamedTuple):
    """A minibatch, and the calls of a chain for it.

    Attributes:
        minibatch: The inputs of the chain.
        recording: The calls.
    """

    minibatch: tuple
    recording: Recording


def other_sizes(
    inputs: Sequence[Any], attempt: Callable[[tuple], Example | None]
) -> list[Example]:
    """Returns minibatches of other sizes, with the calls of a chain for them.

    Each axis grows by one, and then to more than double, so that half of the size
    changes as well. Axes that cannot grow alone grow together with others of the same
    size, or to exactly double.

    Args:
        inputs: The arrays of the example.
        attempt: Function that returns a minibatch with the chain's calls for it, or
            ``None`` if the chain raises an error.
    """
    found: list[Example] = []

    def accepts(axes: Sequence[_Axis], factor: int, more: int) -> bool:
        minibatch = tuple(inputs)
        for i, axis in axes:
            grown = _grown(minibatch[i], axis, factor, more)
            minibatch = (*minibatch[:i], grown, *minibatch[i + 1 :])
        example = attempt(minibatch)
        if example is not None:
            found.append(example)
        return example is not None

    def grows(axes: Sequence[_Axis]) -> bool:
        is_accepted = accepts(axes, 1, 1)
        if is_accepted:
            accepts(axes, 2, 1)
        return is_accepted

    every = [(i, axis) for i, x in enumerate(inputs) for axis in range(1, x.ndim)]
    alike: dict[int, list[_Axis]] = {}
    for i, axis in every:
        if not grows([(i, axis)]):
            alike.setdefault(inputs[i].shape[axis], []).append((i, axis))
    for axes in alike.values():
        if len(axes) > 1 and grows(axes):
            continue
        if accepts(axes, 2, 0) and len(axes) > 1:
            for each in axes:
                accepts([each], 2, 0)
    return found


def _grown(x: Any, axis: int, factor: int, more: int) -> Any:
    """Returns an array that is repeated from its start along an axis."""
    xp = chainer.backend.get_array_module(x)
    n = x.shape[axis]
    return xp.take(x, xp.arange(factor * n + more) % n, axis=axis)
