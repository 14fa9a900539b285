"""The links between ranks, and the links between stages on these ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from divisible.number_lists import numbers
from divisible.planning.per_rank import PerRank, spread
from divisible.records import LIMIT, shown


class Links(NamedTuple):
    """The links of a :class:`Network`, checked, with a number for each.

    Attributes:
        bandwidth: Bytes per second in either direction, of shape (n_links,).
        latency: Seconds of latency, of the same shape.
        overlap: Whether messages travel while ranks compute.
    """

    bandwidth: np.ndarray
    latency: np.ndarray
    overlap: bool

    def of_first(self, n_ranks: int) -> Links:
        """Returns the links between the first ranks."""
        n = n_ranks - 1
        return Links(self.bandwidth[:n], self.latency[:n], self.overlap)

    def between_stages(self, stage_ranks: Sequence[int]) -> Links:
        """Returns the links between neighbouring stages, from those between ranks.

        Ranks that are not neighbours communicate over the links between them, at the
        rate of the slowest and with the greatest latency.

        Args:
            stage_ranks: The rank of each stage.
        """
        slowest, longest = [], []
        for a, b in zip(stage_ranks, stage_ranks[1:]):
            low, high = min(a, b), max(a, b)
            slowest.append(min(self.bandwidth[low:high], default=np.inf))
            longest.append(max(self.latency[low:high], default=0.0))
        return Links(np.array(slowest), np.array(longest), self.overlap)

    def slowest_replica(self, replicas: int) -> Links:
        """Returns the links of a pipeline: at each place the slowest of any replica.

        Args:
            replicas: Number of pipelines; neighbouring ranks make one.
        """
        n_ranks = (len(self.bandwidth) + 1) // replicas
        # The link between two replicas carries gradients only.
        places = np.arange(replicas)[:, None] * n_ranks + np.arange(n_ranks - 1)
        return Links(
            self.bandwidth[places].min(axis=0),
            self.latency[places].max(axis=0),
            self.overlap,
        )

    def between_replicas(self, replicas: int) -> Links:
        """Returns the way from each rank of a pipeline to the same of other replicas.

        The way has the bandwidth of the slowest link on it, and the greatest latency.

        Args:
            replicas: Number of pipelines, two or more; neighbouring ranks make one.
        """
        n_ranks = (len(self.bandwidth) + 1) // replicas
        ways = np.arange(n_ranks)[:, None] + np.arange((replicas - 1) * n_ranks)
        return Links(
            self.bandwidth[ways].min(axis=1),
            self.latency[ways].max(axis=1),
            self.overlap,
        )


@dataclass(frozen=True)
class Network:
    """The links between the ranks of neighbouring stages.

    A message of ``n`` bytes takes ``latency + n / bandwidth`` seconds, which is
    equation (1) of Takisawa et al. (2022).

    Attributes:
        bandwidth: Bytes per second in either direction; one number for all links or
            one for each pair of ranks ``r`` and ``r + 1``.
        latency: Seconds of latency; one number for all links or one for each.
        overlap: Whether messages travel while ranks compute.

    Raises:
        TypeError: If a value is not a number.
        ValueError: If a bandwidth is not positive or a latency negative.

    Example:
        >>> Network(bandwidth=1e9, latency=50e-6).links(3).bandwidth
        array([1.e+09, 1.e+09])
    """

    bandwidth: PerRank = float("inf")
    latency: PerRank = 0.0
    overlap: bool = True

    def __post_init__(self) -> None:
        if not np.all(numbers("bandwidth", self.bandwidth) > 1 / LIMIT):
            raise ValueError(
                f"bandwidth must be positive, beyond 2**-63, not"
                f" {shown(self.bandwidth)}"
            )
        latency = numbers("latency", self.latency)
        if not np.all((latency >= 0) & (latency < LIMIT)):
            raise ValueError(
                f"latency must be finite and not negative, below 2**63, not"
                f" {shown(self.latency)}"
            )

    def links(self, n_ranks: int) -> Links:
        """Returns the first ``n_ranks - 1`` links, a number for each.

        Raises:
            ValueError: If there are fewer links.
        """
        return Links(
            spread("bandwidth", self.bandwidth, n_ranks - 1, "links between ranks"),
            spread("latency", self.latency, n_ranks - 1, "links between ranks"),
            self.overlap,
        )
