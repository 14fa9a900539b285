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
from typing import Any

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
        found = gradient / (np.abs(weights) + np.float32(epsilon))
        return _saturated(found, gradient)


def encode(
    gradient: np.ndarray,
    weights: np.ndarray | None,
    q: float,
    local_size: int,
    settings: Settings,
    out: np.ndarray,
) -> None:
    """Writes the codes that a replica sends within its node.

    Args:
        gradient: Elements of the gradient, float32.
        weights: Weights of these elements, float32; ``None`` without the ratio.
        q: Quantile of the array.
        local_size: Number of replicas of a node.
        settings: Settings of the exchange.
        out: The codes to write, uint8.
    """
    scale = np.float32(float8.LARGEST / q / local_size)
    if weights is None:
        float8.encode(gradient, scale, out, settings.rounds)
        return
    epsilon, truncates = np.float32(settings.epsilon), settings.rounds == "truncate"
    _loops().encode_ratios(gradient, weights, epsilon, scale, truncates, out)


def of_node(codes: np.ndarray, n_nodes: int, settings: Settings) -> np.ndarray:
    """Returns the codes of a node's sum for the other nodes."""
    if n_nodes == 1:
        return codes
    factor = np.float32(1 / n_nodes)
    return float8.encode(float8.decode(codes), factor, rounding=settings.rounds)


def decode(
    codes: np.ndarray,
    weights: np.ndarray | None,
    q: float,
    settings: Settings,
    out: np.ndarray,
) -> None:
    """Writes the mean that all replicas get.

    Args:
        codes: Codes of the sum, uint8.
        weights: Weights of these elements, float32; ``None`` without the ratio.
        q: Quantile of the array.
        settings: Settings of the exchange.
        out: The mean to write, float32.
    """
    scale = np.float32(q / float8.LARGEST)
    if weights is None:
        float8.decode(codes, scale, out)
    else:
        epsilon = np.float32(settings.epsilon)
        _loops().decode_ratios(codes, weights, epsilon, scale, out)


def fold(messages: Sequence[np.ndarray], settings: Settings) -> np.ndarray:
    """Returns the codes of the sum of several messages, in order."""
    first, *others = messages
    total = first.copy()
    for message in others:
        float8.add(total, message, total, settings.rounds)
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
    q = settings.q
    if q is None:
        found = []
        for rank, gradient in enumerate(gradients):
            elements = Draw(rank, array, renewal).elements(gradient.size, settings)
            some = None if weights is None else weights[elements]
            found.append(
                quantile(ratios(gradient[elements], some, settings.epsilon), settings)
            )
        q = largest_quantile(found)
    codes = [np.empty(gradient.size, np.uint8) for gradient in gradients]
    for gradient, out in zip(gradients, codes):
        encode(gradient, weights, q, local_size, settings, out)
    nodes = nodes_of(len(gradients), local_size)
    sums = [
        of_node(fold([codes[r] for r in replicas], settings), len(nodes), settings)
        for replicas in nodes
    ]
    total = fold(sums, settings)
    decoded = np.empty(total.size, np.float32)
    decode(total, weights, q, settings, decoded)
    return decoded, q, total


def _saturated(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Replaces infinite values by the largest number, where ``of`` is finite."""
    infinite = np.isinf(values)
    if infinite.any():
        infinite &= np.isfinite(of)
        most = np.finfo(np.float32).max
        values[infinite] = np.copysign(most, values[infinite])
    return values


def _loops() -> Any:
    # Numba takes a second to load, and most exchanges do not need it.
    from chainer_kernels.loops import oyama2017

    return oyama2017
