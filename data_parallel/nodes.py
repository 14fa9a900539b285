"""The replicas of each node, and the slices that each replica adds up.

Replicas within a node share memory, or a fast link. So their gradients are added up
there, and each node sends one sum::

             lane 0      lane 1
    node 0   replica 0   replica 1        each replica of a node adds up, and sends,
    node 1   replica 2   replica 3        a slice of its own of the array

A *lane* is a slice of the array, and the replica of each node that serves it. On a node
with fewer replicas than others, some replicas serve several lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def nodes_of(n_replicas: int, local_size: int) -> list[range]:
    """Returns the replicas of each node, in rank order; the last may have fewer.

    Example:
        >>> nodes_of(5, 2)
        [range(0, 2), range(2, 4), range(4, 5)]
    """
    return [
        range(start, min(start + local_size, n_replicas))
        for start in range(0, n_replicas, local_size)
    ]


def lanes_of(nodes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Returns for each lane the replica that serves it, by node.

    Example:
        >>> lanes_of([(0, 1), (2, 3)])
        [(0, 2), (1, 3)]
        >>> lanes_of([(0, 1), (2,)])
        [(0, 2), (1, 2)]
    """
    n_lanes = max(len(node) for node in nodes)
    return [tuple(node[i % len(node)] for node in nodes) for i in range(n_lanes)]


def slices_of(n: int, block: int, n_parts: int) -> list[slice]:
    """Returns parts of an array that are as equal as whole blocks allow.

    Example:
        >>> slices_of(100, 16, 3)
        [slice(0, 32, None), slice(32, 64, None), slice(64, 100, None)]
    """
    n_blocks = -(-n // block)
    ends = [min(n, block * (n_blocks * i // n_parts)) for i in range(n_parts + 1)]
    return [slice(start, end) for start, end in zip(ends, ends[1:])]


def shares(n_samples: Sequence[int] | None, n_replicas: int) -> list[np.float32]:
    """Returns the weights of the replicas in the mean, n_r / n.

    Args:
        n_samples: Number of samples of each replica's minibatch; ``None`` if all have
            the same number.
        n_replicas: Number of replicas.

    Raises:
        ValueError: If the numbers do not fit the replicas, or none is positive.
    """
    if n_samples is None:
        return [np.float32(1 / n_replicas)] * n_replicas
    counts = list(n_samples)
    if len(counts) != n_replicas or min(counts) < 0 or sum(counts) <= 0:
        raise ValueError(
            f"n_samples must have a number of samples for each of {n_replicas}"
            f" replicas, not {counts}"
        )
    return [np.float32(count / sum(counts)) for count in counts]
