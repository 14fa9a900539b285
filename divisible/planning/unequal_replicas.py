"""Parts of a minibatch for replicas of unequal speed.

All replicas have the same cuts, and all wait for the last one. So each gets samples in
proportion to the speed of its busiest rank, with these cuts::

                  speeds      work of a cut     samples per second     of 30 samples
    replica 0     1    1         0.5  0.5       1 / 0.5 = 2            20
    replica 1     1    0.5       0.5  0.5       0.5 / 0.5 = 1          10

If a place is slow in one replica only, the cut may not suit it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from divisible.minibatch import microbatch_sizes
from divisible.planning.shares import integer_shares


def parts_by_speed(speeds: np.ndarray, work: np.ndarray, batch: int) -> list[int]:
    """Returns the samples of each replica in a minibatch.

    Args:
        speeds: Speeds of the ranks, of shape (replicas, ranks of a pipeline).
        work: Work of each rank of a pipeline: seconds for a sample, at speed 1.
        batch: Samples of the minibatch, one or more for each replica.

    Example:
        >>> speeds = np.array([[1, 1], [1, 0.5]])
        >>> parts_by_speed(speeds, np.array([0.5, 0.5]), 30)
        [20, 10]
        >>> parts_by_speed(speeds, np.array([2, 1]), 30)
        [15, 15]
    """
    # A rank without any work is never the busiest.
    with np.errstate(divide="ignore"):
        samples_per_second = (speeds / work).min(axis=1)
    return integer_shares(samples_per_second.tolist(), batch)


def microbatches_of_largest(
    parts: Sequence[int] | None, batch: int, replicas: int, n_microbatches: int
) -> list[int]:
    """Returns the sizes of microbatches of the replica that has most samples.

    Args:
        parts: Samples of each replica; ``None`` for equal ones.
        batch: Samples of the minibatch.
        replicas: Number of replicas.
        n_microbatches: Number of microbatches in each replica's part.

    Example:
        >>> microbatches_of_largest(None, 30, 2, 4)
        [4, 4, 4, 3]
        >>> microbatches_of_largest([20, 10], 30, 2, 4)
        [5, 5, 5, 5]
    """
    largest = -(-batch // replicas) if parts is None else max(parts)
    return microbatch_sizes(largest, n_microbatches)


def relative_loads(
    parts: Sequence[int], n_microbatches: int, seconds: Callable[[int], float]
) -> np.ndarray:
    """Returns the work of each replica, relative to the one that has most.

    Args:
        parts: Samples of each replica.
        n_microbatches: Number of microbatches in each replica's part, if it has so many
            samples.
        seconds: Returns the seconds of a microbatch, given its number of samples, at
            speed 1.

    Example:
        >>> relative_loads([20, 10, 2], 4, float).tolist()
        [1.0, 0.5, 0.1]
        >>> relative_loads([20, 10], 5, lambda n: n + 4.0).tolist()
        [1.0, 0.75]
    """
    whole = np.array(
        [sum(map(seconds, microbatch_sizes(n, min(n, n_microbatches)))) for n in parts]
    )
    return whole / whole.max()
