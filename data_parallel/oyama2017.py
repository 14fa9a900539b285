"""Algorithm 1 of Oyama et al.: 8 bits, relative to the weights, summed in two levels.

::

    D = g / (|w| + epsilon)                or g itself, without the ratio
    codes = e5m2(D * 57344 / q / P')       q: a quantile of |D|; P' replicas in a node
    within a node   fold in rank order, rounded to e5m2 after each addition
    between nodes   times 1 / nodes, rounded; folded likewise
    mean = decoded * q / 57344 * (|w| + epsilon)

The result has not the size of the mean gradient. With the paper's truncation, its
projection on the exact mean was 0.75 with 4 replicas, and 0.50 with 64 in nodes of 8
(``benchmarks/results/data_parallel_accuracy.txt``). Finite values saturate at 57344,
the largest number.

Computation is on the host, with copies of arrays that are on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chainer_kernels import float8
from data_parallel.arrays import HOST
from data_parallel.nodes import nodes_of
from data_parallel.quantiles import Draw, largest_quantile, quantile
from data_parallel.settings import Settings

NEEDS_WEIGHTS = (
    "strategy 'oyama2017' sends ratios: give weights, or ratio=False to send gradients"
)


def flat_weights(
    weights: Sequence[np.ndarray] | None, shapes: Sequence[tuple[int, ...]]
) -> list[np.ndarray]:
    """Returns weights in the form that the code needs.

    Args:
        weights: The weights that a caller gives.
        shapes: Shapes of the gradients.

    Raises:
        ValueError: If there are no weights, or they do not fit.
    """
    if weights is None:
        raise ValueError(NEEDS_WEIGHTS)
    weights = [HOST.send(array) for array in weights]
    found = [np.shape(array) for array in weights]
    if found != list(shapes):
        raise ValueError(
            f"weights must have the shapes of the arrays, {list(shapes)}, not {found}"
        )
    return [np.ascontiguousarray(w, np.float32).reshape(-1) for w in weights]


def ratios(
    gradient: np.ndarray, weights: np.ndarray | None, epsilon: float
) -> np.ndarray:
    """Returns the gradient relative to the weights, D, float32.

    Without weights D is the gradient itself.
    """
    if weights is None:
        return gradient
    with np.errstate(over="ignore"):
        return _saturated(gradient / magnitudes(weights, epsilon), gradient)


def magnitudes(weights: np.ndarray, epsilon: float) -> np.ndarray:
    """Returns the magnitudes of weights, plus epsilon, float32."""
    return np.abs(weights) + np.float32(epsilon)


def encode(
    ratio: np.ndarray, q: float, local_size: int, settings: Settings
) -> np.ndarray:
    """Returns the codes that a replica sends within its node."""
    scale = np.float32(float8.LARGEST / q / local_size)
    with np.errstate(over="ignore"):
        return _rounded(_saturated(ratio * scale, ratio), settings)


def add(codes: np.ndarray, others: np.ndarray, settings: Settings) -> np.ndarray:
    """Returns the codes of a rounded sum."""
    return _rounded(float8.decode(codes) + float8.decode(others), settings)


def of_node(codes: np.ndarray, n_nodes: int, settings: Settings) -> np.ndarray:
    """Returns the codes of a node's sum for the other nodes."""
    if n_nodes == 1:
        return codes
    return _rounded(float8.decode(codes) * np.float32(1 / n_nodes), settings)


def decode(
    codes: np.ndarray, q: float, weights: np.ndarray | None, settings: Settings
) -> np.ndarray:
    """Returns the mean that all replicas get."""
    back = float8.decode(codes) * np.float32(q / float8.LARGEST)
    return back if weights is None else back * magnitudes(weights, settings.epsilon)


def fold(messages: Sequence[np.ndarray], settings: Settings) -> np.ndarray:
    """Returns the codes of the sum of several messages, in order."""
    total = messages[0]
    for message in messages[1:]:
        total = add(total, message, settings)
    return total


def mean(
    gradients: Sequence[np.ndarray],
    weights: np.ndarray | None,
    local_size: int,
    settings: Settings,
    array: str,
    renewal: int,
) -> tuple[np.ndarray, float, np.ndarray]:
    """Returns the mean, q and the codes of the sum, of all replicas in one process.

    Args:
        gradients: Flat float32 arrays, one for each replica.
        weights: The weights, flat float32, equal on all replicas; ``None`` to send
            gradients instead of ratios.
        local_size: Number of replicas of a node.
        settings: Settings of the exchange.
        array: Name of the array.
        renewal: Number of the renewal that q belongs to.
    """
    each = [ratios(gradient, weights, settings.epsilon) for gradient in gradients]
    q = settings.q
    if q is None:
        found = []
        for rank, ratio in enumerate(each):
            elements = Draw(rank, array, renewal).elements(ratio.size, settings)
            found.append(quantile(ratio[elements], settings))
        q = largest_quantile(found)
    codes = [encode(ratio, q, local_size, settings) for ratio in each]
    nodes = nodes_of(len(gradients), local_size)
    sums = [
        of_node(fold([codes[r] for r in replicas], settings), len(nodes), settings)
        for replicas in nodes
    ]
    total = fold(sums, settings)
    return decode(total, q, weights, settings), q, total


def _saturated(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Replaces infinite values by the largest number, where ``of`` is finite."""
    infinite = np.isinf(values)
    if infinite.any():
        infinite &= np.isfinite(of)
        most = np.finfo(np.float32).max
        values[infinite] = np.copysign(most, values[infinite])
    return values


def _rounded(values: np.ndarray, settings: Settings) -> np.ndarray:
    return float8.encode(values, rounding=settings.rounds)
