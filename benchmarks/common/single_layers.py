"""Single layers to measure, and the CPU seconds of a call."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from typing import Any, Callable

import chainer.links as L

#: Seconds that one measurement takes at least, for the clock.
_LONG = 0.03

#: The name of a layer, a function that makes it, and the shape of its input.
Case = tuple[str, Callable[[], Any], tuple[int, ...]]


def linear_cases(sizes: Iterable[tuple[int, int, int]]) -> list[Case]:
    """Returns linear layers.

    Args:
        sizes: Samples, inputs and outputs of each.

    Example:
        >>> [(name, shape) for name, _, shape in linear_cases([(64, 3, 5)])]
        [('linear 3 to 5', (64, 3))]
    """
    return [
        (f"linear {n} to {m}", functools.partial(L.Linear, n, m), (batch, n))
        for batch, n, m in sizes
    ]


def convolution_cases(sizes: Iterable[tuple[int, int, int, int, int]]) -> list[Case]:
    """Returns convolutions whose output is as large as the input.

    Args:
        sizes: Samples, channels, pixels on a side, channels of the output, and the size
            of the kernel, of each.
    """
    return [
        (
            f"conv {k} x {k}, {c} to {o}",
            functools.partial(L.Convolution2D, c, o, k, pad=k // 2),
            (batch, c, size, size),
        )
        for batch, c, size, o, k in sizes
    ]


def seconds_of(call: Callable[[], Any]) -> float:
    """Returns the CPU seconds of one call, of as many as the clock needs."""
    start, n = time.process_time(), 0
    while n == 0 or time.process_time() - start < _LONG:
        call()
        n += 1
    return (time.process_time() - start) / n
