"""Encode, send, add up in float32, encode once more, send: two roundings, whatever P.

::

    replica 0   g0 --encode-->  c0  -.                                .-->  mean
    replica 1   g1 --encode-->  c1  --+-- decoded and added up in     +-->  mean
    replica 2   g2 --encode-->  c2  -'    rank order, --encode-->  c -'     same bits

The error of an element is at most ``first + u (|exact| + first) + a(|exact| + first)``,
where ``first`` is the sum over the replicas of what one rounding of their part costs;
see :class:`~divisible.communication.wire.WireDtype`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data_parallel.nodes import nodes_of, shares
from data_parallel.settings import Settings


def node_parts(
    gradients: Sequence[np.ndarray],
    local_size: int,
    n_samples: Sequence[int] | None,
) -> list[np.ndarray]:
    """Returns for each node the weighted sum of its replicas' gradients, unrounded.

    Args:
        gradients: Flat float32 arrays, one for each replica, in rank order.
        local_size: How many replicas share a node.
        n_samples: Of each replica's minibatch.
    """
    weights = shares(n_samples, len(gradients))
    parts = []
    for replicas in nodes_of(len(gradients), local_size):
        part = weights[replicas[0]] * gradients[replicas[0]]
        for replica in replicas[1:]:
            part += weights[replica] * gradients[replica]
        parts.append(part)
    return parts


def mean_of_parts(
    parts: Sequence[np.ndarray], settings: Settings
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns what each replica has afterwards, and what the first rounding lost.

    Args:
        parts: Of each node, flat float32, in order. What one node has alone crosses no
            wire, and is not rounded.
        settings: Of the exchange.

    Returns:
        The mean, and for each node the difference of its part and what was sent of it.
    """
    if len(parts) == 1:
        return parts[0], [np.zeros_like(parts[0])]
    wire, block = settings.wire, settings.block
    total, lost = np.zeros_like(parts[0]), []
    for part in parts:
        message = wire.encode(part, block)
        lost.append(part - wire.decode(message, part.size, block))
        wire.decode(message, part.size, block, out=total, add=True)
    message = wire.encode(total, block)
    return wire.decode(message, total.size, block), lost


def residual(lost: np.ndarray, share: np.float32) -> np.ndarray:
    """Returns what to add to a replica's next gradient, for what was lost of its part.

    Args:
        lost: Of the weighted gradient.
        share: The weight; a replica without samples has lost nothing.
    """
    return lost / share if share else np.zeros_like(lost)
