"""The coded regions of messages with Algorithm 1 of Oyama et al."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data_parallel.coder import Gradients
from data_parallel.layout import Bucket, Segment
from data_parallel.oyama2017 import decode, encode, fold, of_node, ratios
from data_parallel.quantiles import Draw, largest_quantile, quantile
from data_parallel.settings import Settings
from divisible.communication.wire import Fields


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
        encode(
            self._values(segment.array, segment.elements),
            self._weights_of(segment.array, segment.elements),
            self._q[segment.array],
            self._local_size,
            self._settings,
            out,
        )

    def write_sum(
        self, segment: Segment, contributions: Sequence[np.ndarray | None], to: Fields
    ) -> bool:
        """Folds a node's codes. Codes of a sum that is not finite are not finite."""
        # The codes of the sum replace this replica's, which are written there first.
        self.contribute(segment, to.codes)
        codes = [to.codes if each is None else each for each in contributions]
        total = fold(codes, self._settings)
        to.codes[...] = of_node(total, self._n_nodes, self._settings)
        return True

    def add_up(self, segment: Segment, messages: Sequence[Fields], to: Fields) -> bool:
        """Folds the nodes' codes."""
        to.codes[...] = fold([each.codes for each in messages], self._settings)
        return True

    def read(self, segment: Segment, fields: Fields) -> None:
        """Decodes the mean into the arrays."""
        decode(
            fields.codes,
            self._weights_of(segment.array, segment.elements),
            self._q[segment.array],
            self._settings,
            self._gradients.of(segment),
        )

    def _quantile(self, i: int) -> float:
        settings = self._settings
        elements = self._draws[i].elements(self._gradients.flat[i].size, settings)
        values, weights = self._values(i, elements), self._weights_of(i, elements)
        return quantile(ratios(values, weights, settings.epsilon), settings)

    def _values(self, i: int, elements: slice | np.ndarray) -> np.ndarray:
        values = self._gradients.flat[i][elements]
        return values if self._factor is None else values * self._factor

    def _weights_of(self, i: int, elements: slice | np.ndarray) -> np.ndarray | None:
        weights = self._weights[i]
        return None if weights is None else weights[elements]


def _coded(bucket: Bucket) -> list[int]:
    """Returns the positions of a bucket's arrays that are coded."""
    return [i for i in bucket.arrays if i not in bucket.exact]
