"""Algorithm 1 of Oyama et al.: 8 bits, relative to the weights, summed in two levels.

::

    D = g / (|w| + epsilon)
    codes = e5m2(D * 57344 / q / P')       q: a quantile of |D|; P' replicas in a node
    within a node   fold in rank order, rounded to e5m2 after each addition
    between nodes   times 1 / nodes, rounded; folded likewise
    mean = decoded * q / 57344 * (|w| + epsilon)

It does not keep the size of the gradient: with the paper's truncation the projection of
the result on the exact mean falls from 0.85 for 2 replicas to 0.5 for 64. Finite values
saturate at 57344, the largest number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chainer_kernels import float8
from data_parallel.nodes import nodes_of
from data_parallel.settings import Settings

LARGEST = np.float32(float8.LARGEST)


def ratios(gradient: np.ndarray, weights: np.ndarray, epsilon: float) -> np.ndarray:
    """Returns the gradient relative to the weights, D, float32."""
    return gradient / magnitudes(weights, epsilon)


def magnitudes(weights: np.ndarray, epsilon: float) -> np.ndarray:
    """Returns the magnitudes of weights, plus epsilon, float32."""
    return np.abs(weights) + np.float32(epsilon)


def quantile(ratio: np.ndarray, settings: Settings) -> float:
    """Returns this replica's q: a quantile of |D| over all or some elements.

    Args:
        ratio: D, flat.
        settings: Of the exchange.
    """
    if ratio.size > settings.samples:
        random = np.random.RandomState(settings.seed)
        ratio = ratio[random.choice(ratio.size, settings.samples, replace=False)]
    if not ratio.size:
        return 0.0
    return float(np.quantile(np.abs(ratio), settings.quantile))


def largest_quantile(found: Sequence[float]) -> float:
    """Returns the q of all replicas; 1 if all gradients are zero."""
    return max(found) or 1.0


def encode(
    ratio: np.ndarray, q: float, local_size: int, settings: Settings
) -> np.ndarray:
    """Returns the codes that a replica sends within its node."""
    scale = np.float32(float8.LARGEST / q / local_size)
    return _rounded(ratio * scale, settings)


def add(codes: np.ndarray, others: np.ndarray, settings: Settings) -> np.ndarray:
    """Returns the codes of a sum, rounded."""
    return _rounded(float8.decode(codes) + float8.decode(others), settings)


def of_node(codes: np.ndarray, n_nodes: int, settings: Settings) -> np.ndarray:
    """Returns the codes of a node's sum as it goes to the other nodes."""
    if n_nodes == 1:
        return codes
    return _rounded(float8.decode(codes) * np.float32(1 / n_nodes), settings)


def decode(
    codes: np.ndarray, q: float, weights: np.ndarray, settings: Settings
) -> np.ndarray:
    """Returns the mean that all replicas get."""
    back = float8.decode(codes) * np.float32(q / float8.LARGEST)
    return back * magnitudes(weights, settings.epsilon)


def fold(messages: Sequence[np.ndarray], settings: Settings) -> np.ndarray:
    """Returns the codes of the sum of several, in order."""
    total = messages[0]
    for message in messages[1:]:
        total = add(total, message, settings)
    return total


def mean(
    gradients: Sequence[np.ndarray],
    weights: np.ndarray,
    local_size: int,
    settings: Settings,
) -> tuple[np.ndarray, float, np.ndarray]:
    """Returns the mean, q and the codes of the sum, of all replicas in one process.

    Args:
        gradients: Flat float32 arrays, one for each replica.
        weights: The weights, flat float32; the same on all.
        local_size: How many replicas share a node.
        settings: Of the exchange.
    """
    each = [ratios(gradient, weights, settings.epsilon) for gradient in gradients]
    q = settings.q
    if q is None:
        q = largest_quantile([quantile(ratio, settings) for ratio in each])
    codes = [encode(ratio, q, local_size, settings) for ratio in each]
    nodes = nodes_of(len(gradients), local_size)
    sums = [
        of_node(fold([codes[r] for r in replicas], settings), len(nodes), settings)
        for replicas in nodes
    ]
    total = fold(sums, settings)
    return decode(total, q, weights, settings), q, total


def _rounded(values: np.ndarray, settings: Settings) -> np.ndarray:
    return float8.encode(values, rounding=settings.rounds)
