"""Weights that the forward of a chain writes itself, between calls of its links.

::

    def forward(self, x):
        self.a.W.array *= self.mask        no layer does this: refused
        return self.b(self.a(x))

A link may write its own weights in its own forward, such as a masked convolution. Each
link is therefore compared before its call with what it was after the call before.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import chainer
import numpy as np

from divisible.chains.calls import ChainError
from divisible.chains.places import Place


class Weights:
    """Checksums of the parameters of a chain.

    Args:
        chain (chainer.Link): The chain; its parameters have their sizes.

    Example:
        >>> link = chainer.links.Linear(2, 2)
        >>> weights = Weights(link)
        >>> weights.check(link.params(), None)
        >>> link.W.array[0] += 1
        >>> weights.check(link.params(), None)
        Traceback (most recent call last):
            ...
        divisible.chains.calls.ChainError: forward changes the parameter /W, ...
    """

    def __init__(self, chain: chainer.Link) -> None:
        self._paths = {id(param): path for path, param in chain.namedparams()}
        self._sums: dict[int, int] = {}
        self.keep(chain.params())

    def keep(self, params: Iterable[chainer.Parameter]) -> None:
        """Keeps the checksums of parameters as they are."""
        self._sums.update((id(param), _checksum(param.array)) for param in params)

    def check(self, params: Iterable[chainer.Parameter], place: Place | None) -> None:
        """Checks that parameters are as they were.

        Raises:
            ChainError: If one of them was changed.
        """
        for param in params:
            if _checksum(param.array) != self._sums[id(param)]:
                raise changed(self._paths[id(param)], place)


def changed(path: str, place: Place | None) -> ChainError:
    """Returns the error of a parameter that a forward changes."""
    return ChainError(
        f"forward changes the parameter {path}, which no layer would do: let a hook of"
        f" the optimizer change it, as WeightDecay does, or an extension after each"
        f" update, or put the change into the forward of the link that has it",
        place,
    )


def _checksum(array: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(chainer.backends.cuda.to_cpu(array)))
