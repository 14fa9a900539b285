"""Running averages that a function moves by itself, such as a module of PyTorch.

A pipeline moves running averages once for each minibatch. It asks a function of this
kind to report the statistics of each microbatch instead::

    alone          forward ---- moves ----> mean, variance
    in a pipeline  forward ---- collect(average, sample)
                                             end of the minibatch moves them
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import chainer

Array = Any


class Sample(NamedTuple):
    """Statistics of one microbatch, in the shape of the running averages.

    Attributes:
        n: Number of elements behind each mean.
        mean: Means.
        variance: Unbiased variances.
    """

    n: int
    mean: Array
    variance: Array


class RunningAverage(NamedTuple):
    """The running averages of one batch normalization.

    Attributes:
        key: Number that no other averages in this process have.
        mean: Running means, to be changed in place.
        variance: Running variances, to be changed in place.
        decay: The part of them that remains when they move; a function of the number of
            calls before in the same microbatch.
        moved: Called when they have moved.
    """

    key: int
    mean: Array
    variance: Array
    decay: Callable[[int], float]
    moved: Callable[[], None]


class AveragingFunction(chainer.FunctionNode):
    """A function that may move running averages in its forward.

    Attributes:
        collect: ``collect(average, sample)`` is called with the statistics of each
            batch normalization in place of moving its averages; ``None`` to move them.
    """

    collect: Callable[[RunningAverage, Sample], None] | None = None

    def has_averages(self) -> bool:
        """Returns whether the forward is going to move running averages."""
        raise NotImplementedError
