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
from data_parallel.coder import Gradients
from data_parallel.layout import Bucket, Segment
from data_parallel.nodes import nodes_of
from data_parallel.quantiles import Draw, largest_quantile, quantile
from data_parallel.settings import Settings
from divisible.communication.wire import Fields

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


def _coded(bucket: Bucket) -> list[int]:
    """Returns the positions of a bucket's arrays that are coded."""
    return [i for i in bucket.arrays if i not in bucket.exact]


def _rounded(values: np.ndarray, settings: Settings) -> np.ndarray:
    return float8.encode(values, rounding=settings.rounds)


class Oyama2017Code:
    """The coded regions of messages that are added up in 8 bits.

    Args:
        settings: Settings of the exchange.
        gradients: Gradients of this replica.
        weights: Weights of each array, flat float32, equal on all replicas; ``None`` to
            send gradients instead of ratios.
        q: Quantile of each array; 0 where a new one is needed.
        draws: Choice of the elements of each array from which a new one is computed.
        nodes: The replicas of each node, as many on each.
        are_alike: Whether the replicas' minibatches have equally many samples.
    """

    contribution_bytes, has_infinity = 1, True

    def __init__(
        self,
        settings: Settings,
        gradients: Gradients,
        weights: Sequence[np.ndarray | None],
        q: list[float],
        draws: Sequence[Draw],
        nodes: Sequence[Sequence[int]],
        are_alike: bool,
    ) -> None:
        self._settings, self._gradients, self._weights = settings, gradients, weights
        self._q, self._draws = q, draws
        self._n_nodes, self._local_size = len(nodes), len(nodes[0])
        # Factor of the gradients before coding.
        self._factor = None
        if not are_alike:
            n_replicas = np.float32(self._n_nodes * self._local_size)
            self._factor = gradients.share * n_replicas

    def prepare(self, bucket: Bucket) -> np.ndarray | None:
        """Returns this replica's quantiles, if new ones are needed."""
        coded = _coded(bucket)
        if all(self._q[i] for i in coded):
            return None
        return np.array([self._quantile(i) for i in coded])

    def agree(self, bucket: Bucket, largest: np.ndarray) -> None:
        """Stores the largest quantiles of all replicas."""
        for i, q in zip(_coded(bucket), largest):
            self._q[i] = largest_quantile([float(q)])

    def n_bytes(self, n: int) -> int:
        """Returns the bytes of ``n`` elements in a message between nodes."""
        return n

    def fields(self, message: np.ndarray, n: int) -> Fields:
        """Returns the codes; there are no scales."""
        return Fields(message[:0].view(np.float32), message)

    def of_segment(self, fields: Fields, place: slice) -> Fields:
        """Returns the codes of some of the elements."""
        return fields._replace(codes=fields.codes[place])

    def contribute(self, segment: Segment, out: np.ndarray) -> None:
        """Writes the codes of the ratios."""
        out[...] = self._codes(segment)

    def write_sum(
        self, segment: Segment, contributions: Sequence[np.ndarray | None], to: Fields
    ) -> bool:
        """Folds a node's codes. Codes of a sum that is not finite are not finite."""
        codes = [
            self._codes(segment) if each is None else each for each in contributions
        ]
        total = fold(codes, self._settings)
        to.codes[...] = of_node(total, self._n_nodes, self._settings)
        return True

    def add_up(self, segment: Segment, messages: Sequence[Fields], to: Fields) -> bool:
        """Folds the nodes' codes."""
        to.codes[...] = fold([each.codes for each in messages], self._settings)
        return True

    def read(self, segment: Segment, fields: Fields) -> None:
        """Decodes the mean into the arrays."""
        weights = self._weights_of(segment.array, segment.elements)
        q = self._q[segment.array]
        self._gradients.of(segment)[...] = decode(
            fields.codes, q, weights, self._settings
        )

    def _quantile(self, i: int) -> float:
        elements = self._draws[i].elements(self._gradients.flat[i].size, self._settings)
        return quantile(self._ratios(i, elements), self._settings)

    def _codes(self, segment: Segment) -> np.ndarray:
        ratio = self._ratios(segment.array, segment.elements)
        return encode(ratio, self._q[segment.array], self._local_size, self._settings)

    def _ratios(self, i: int, elements: slice | np.ndarray) -> np.ndarray:
        values = self._gradients.flat[i][elements]
        if self._factor is not None:
            values = values * self._factor
        weights = self._weights_of(i, elements)
        return ratios(values, weights, self._settings.epsilon)

    def _weights_of(self, i: int, elements: slice | np.ndarray) -> np.ndarray | None:
        weights = self._weights[i]
        return None if weights is None else weights[elements]
