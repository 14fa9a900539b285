"""An order of samples that can be resumed with any iterator."""

from __future__ import annotations

import hashlib
import operator

import numpy as np
from chainer.iterators import OrderSampler


class SeededShuffle(OrderSampler):
    """Shuffles the samples of each epoch by a seed and the order of the epoch before.

    Iterators that prefetch, such as ``MultiprocessIterator`` and
    ``MultithreadIterator``, draw the next epoch's order before the present epoch has
    ended. If the order came from a generator, it would differ in a run that is resumed
    from a snapshot taken in between. This class needs no generator::

        order of the next epoch = f(seed, order of this epoch)

    and an iterator saves its order.

    Args:
        seed (int): Seed, at least 0.

    Raises:
        ValueError: If ``seed`` is negative.

    Example:
        >>> from chainer.iterators import SerialIterator
        >>> iterator = SerialIterator('abcdef', 6, order_sampler=SeededShuffle(0))
        >>> ''.join(iterator.next()), ''.join(iterator.next())
        ('badecf', 'adfbce')
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = operator.index(seed)
        if self._seed < 0:
            raise ValueError(f"seed must be at least 0, not {seed}")

    def __call__(self, current_order: np.ndarray, current_position: int) -> np.ndarray:
        """Returns the next epoch's order."""
        order = np.ascontiguousarray(current_order, dtype="<i8")
        digest = hashlib.sha256(str(self._seed).encode() + order.tobytes()).digest()
        random = np.random.RandomState(np.frombuffer(digest, dtype="<u4"))
        return random.permutation(len(order))
