"""Initial weights drawn segment by segment, with the same numbers as the whole array.

Chainer's initializers draw an array as large as the one that they fill, in float64. A
generator returns the same numbers in the same order when it draws a few at a time. So
the rows of a matrix may be drawn one after the other::

    Normal()(W)          rng: 0 1 2 3 4 5 6 7 8 9 10 11      all at once
    Normal()(W[0:2])     rng: 0 1 2 3 4 5                    the same, with half
    Normal()(W[2:4])     rng:             6 7 8 9 10 11      of the memory

The standard deviation depends on the shape of the whole array, and is computed first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable

import chainer
import numpy as np
from chainer import initializers
from chainer.initializer import get_fans
from chainer.initializers.constant import _Constant

Write = Callable[[np.ndarray], Any]


def by_segments(
    write: Write, array: np.ndarray, segments: Iterable[tuple[int, int]]
) -> None:
    """Fills an array with an initializer's values, segment by segment.

    Args:
        write: The initializer.
        array: The array, C contiguous.
        segments: For each segment the first row and the one behind the last, in order
            and without gaps. A segment is not used any more when the next one is
            requested.

    Raises:
        TypeError: If the initializer needs the whole array.

    Example:
        >>> whole, parts = np.empty((6, 5), 'f'), np.empty((6, 5), 'f')
        >>> np.random.seed(0); initializers.HeNormal()(whole)
        >>> np.random.seed(0); by_segments(
        ...     initializers.HeNormal(), parts, [(0, 4), (4, 6)])
        >>> bool((whole == parts).all())
        True
    """
    filling = _of_rows(write, array.shape)
    for start, stop in segments:
        filling(array[start:stop], start, stop)


def check(write: Write, shape: tuple[int, ...]) -> None:
    """Refuses an initializer that needs the whole array.

    Raises:
        TypeError: If it does.
    """
    _of_rows(write, shape)


def _of_rows(write: Write, shape: tuple[int, ...]) -> Callable:
    """Returns a function that fills some rows of an array of a given shape."""
    value = getattr(write, "fill_value", None)
    if isinstance(value, chainer.get_array_types()) and value.ndim:
        rows = np.broadcast_to(value, shape)
        return lambda part, start, stop: np.copyto(part, rows[start:stop])
    drawing = _drawing(write, shape)
    if drawing is None:
        names = ", ".join(kind.__name__ for kind in _DEVIATIONS)
        raise TypeError(
            f"{type(write).__name__} makes the whole array at once: a streamed operand"
            f" can be initialized by Constant, {names}, or an array"
        )
    return lambda part, start, stop: drawing(part)


def _drawing(write: Any, shape: tuple[int, ...]) -> Write | None:
    """Returns an initializer that can fill any rows; ``None`` if there is none."""
    if isinstance(write, _Constant):
        return write
    if type(write) not in _DEVIATIONS:
        return None
    draws, deviation = _DEVIATIONS[type(write)]
    scale = write.scale * deviation(write, *get_fans(shape))
    return draws(scale, dtype=write.dtype, rng=write.rng)


def _he_normal(write: Any, fan_in: int, fan_out: int) -> float:
    return np.sqrt(2.0 / (fan_in if write.fan_option == "fan_in" else fan_out))


def _one(write: Any, fan_in: int, fan_out: int) -> float:
    return 1.0


def _over_fan_in(square: float) -> Callable:
    return lambda write, fan_in, fan_out: np.sqrt(square / fan_in)


def _over_fans(square: float) -> Callable:
    return lambda write, fan_in, fan_out: np.sqrt(square / (fan_in + fan_out))


#: For each exact class the class that draws, and a function that returns its scale.
_DEVIATIONS: dict[type, tuple[Callable, Callable]] = {
    initializers.Normal: (initializers.Normal, _one),
    initializers.LeCunNormal: (initializers.Normal, _over_fan_in(1.0)),
    initializers.GlorotNormal: (initializers.Normal, _over_fans(2.0)),
    initializers.HeNormal: (initializers.Normal, _he_normal),
    initializers.Uniform: (initializers.Uniform, _one),
    initializers.LeCunUniform: (initializers.Uniform, _over_fan_in(3.0)),
    initializers.GlorotUniform: (initializers.Uniform, _over_fans(6.0)),
    initializers.HeUniform: (initializers.Uniform, _over_fan_in(6.0)),
}
