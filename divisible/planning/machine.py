"""Speeds, memory and links of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np

from divisible.number_lists import amount, numbers
from divisible.records import LIMIT, shown
from divisible.schedules.schedule import Schedule

#: A number for all ranks or edges, or one for each.
PerRank = Union[float, Sequence[float]]


@dataclass(frozen=True)
class Network:
    """The links between the ranks of neighbouring stages.

    A message of ``n`` bytes takes ``latency + n / bandwidth`` seconds, which is
    equation (1) of Takisawa et al. (2022).

    Attributes:
        bandwidth: Bytes per second in either direction; one number for all links or
            one for each pair of ranks ``r`` and ``r + 1``.
        latency: Seconds; the same.
        overlap: Whether messages travel while ranks compute.

    Raises:
        TypeError: If something is no number.
        ValueError: If a bandwidth is not positive or a latency negative.

    Example:
        >>> Network(bandwidth=1e9, latency=50e-6).edges(3)
        (array([1.e+09, 1.e+09]), array([5.e-05, 5.e-05]))
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

    def edges(self, n_stages: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns bandwidth and latency of the first ``n_stages - 1`` links.

        Raises:
            ValueError: If there are fewer.
        """
        return (
            spread("bandwidth", self.bandwidth, n_stages - 1, "links between ranks"),
            spread("latency", self.latency, n_stages - 1, "links between ranks"),
        )


def spread(name: str, values: PerRank, n: int, what: str = "ranks") -> np.ndarray:
    """Returns one number for each of ``n``; those beyond are left out.

    Raises:
        TypeError: If something is no number.
        ValueError: If there are fewer.
    """
    array = numbers(name, values)
    if array.ndim == 0:
        return np.full(n, float(array))
    if array.ndim != 1 or len(array) < n:
        raise ValueError(
            f"{name} has {amount(array)}, but there are {n} {what}: give one number"
            f" for all or one for each"
        )
    return array[:n]


def spread_speeds(speeds: PerRank | None, n: int) -> np.ndarray:
    """Returns the speed of each of ``n`` ranks, 1 if nothing is said.

    Raises:
        ValueError: If there are fewer, or one is not finite and positive.
    """
    speeds = spread("speeds", 1.0 if speeds is None else speeds, n)
    if not np.all((speeds > 1 / LIMIT) & (speeds < LIMIT)):
        raise ValueError(
            f"speeds must be finite and positive, from 2**-63 to 2**63, not"
            f" {shown(speeds)}"
        )
    return speeds


def spread_memory(memory: PerRank | None, n: int) -> np.ndarray:
    """Returns the bytes that each of ``n`` ranks may use, no limit if nothing is said.

    Raises:
        ValueError: If there are fewer, or one is not positive.
    """
    limits = spread("memory", np.inf if memory is None else memory, n)
    if not np.all(limits > 0):
        raise ValueError(f"memory must be positive, not {shown(memory)}")
    return limits


def slowest_replica(
    network: Network, speeds: np.ndarray, replicas: int
) -> tuple[Network, np.ndarray]:
    """Returns for each place in a pipeline the slowest that a replica has there.

    Args:
        network: The links between all ranks.
        speeds: Of all ranks; neighbouring ones make a pipeline.
        replicas: How many pipelines there are.

    Returns:
        The links and the speeds of one pipeline.
    """
    n_ranks = len(speeds) // replicas
    bandwidth, latency = network.edges(len(speeds))
    # The link between two replicas carries gradients only.
    links = np.arange(replicas)[:, None] * n_ranks + np.arange(n_ranks - 1)
    slowest = Network(
        bandwidth[links].min(axis=0), latency[links].max(axis=0), network.overlap
    )
    return slowest, speeds.reshape(replicas, n_ranks).min(axis=0)


def exchange_links(network: Network, replicas: int, n_ranks: int) -> Network:
    """Returns for each rank of a pipeline the way to the same one of other replicas.

    It is the slowest link on it, and the greatest latency.

    Args:
        network: The links between all ranks; neighbouring ones make a pipeline.
        replicas: How many pipelines there are, two or more.
        n_ranks: Of each.

    Returns:
        Network: Bandwidth and latency of shape (n_ranks,).
    """
    bandwidth, latency = network.edges(replicas * n_ranks)
    between = np.arange(n_ranks)[:, None] + np.arange((replicas - 1) * n_ranks)
    return Network(
        bandwidth[between].min(axis=1), latency[between].max(axis=1), network.overlap
    )


def edges(network: Network, schedule: Schedule) -> Network:
    """Returns the links between stages, from those between ranks.

    Ranks that are no neighbours talk over the links between them, at the rate of the
    slowest and with the greatest latency.
    """
    bandwidth, latency = network.edges(schedule.n_ranks)
    slowest, longest = [], []
    for a, b in zip(schedule.stage_ranks, schedule.stage_ranks[1:]):
        low, high = min(a, b), max(a, b)
        slowest.append(min(bandwidth[low:high], default=np.inf))
        longest.append(max(latency[low:high], default=0.0))
    return Network(np.array(slowest), np.array(longest), network.overlap)
