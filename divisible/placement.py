"""The placement of a grid on hosts: ranks of a pipeline together, or replicas together.

Two replicas of two stages on two hosts of two ranks::

                     stages_together               replicas_together
    host 0           stage 0 --> stage 1           stage 0 <=> stage 0
                        ^           ^                 |           |
                        | gradients |                 v activations
                        v           v                 v           v
    host 1           stage 0 --> stage 1           stage 1 <=> stage 1

Messages between hosts share the hosts' links, and cost more than messages within a
host. So the bytes of a step decide: activations between neighbouring stages, for each
replica, against gradients between replicas, for each rank of a pipeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

#: The ways to number ranks.
PLACEMENTS = ("stages_together", "replicas_together")


class RankGrid(NamedTuple):
    """Ranks in rows, which are pipelines, and columns, which have the same stages.

    ::

        'stages_together'                 'replicas_together'

                   rank in the pipeline              rank in the pipeline
                     0   1   2                         0   1   2
        replica 0    0   1   2            replica 0    0   2   4
        replica 1    3   4   5            replica 1    1   3   5

    Attributes:
        n_pipeline: Number of ranks of a pipeline.
        n_replicas: Number of pipelines.
        placement: One of `PLACEMENTS`.

    Example:
        >>> grid = RankGrid(3, 2, "replicas_together")
        >>> grid.place(3), grid.rank_of(1, 1)
        ((1, 1), 3)
    """

    n_pipeline: int
    n_replicas: int
    placement: str

    def place(self, rank: int) -> tuple[int, int]:
        """Returns the replica of a rank, and its rank in the replica's pipeline."""
        if self.placement == "stages_together":
            replica, place = divmod(rank, self.n_pipeline)
        else:
            place, replica = divmod(rank, self.n_replicas)
        return replica, place

    def rank_of(self, replica: int, place: int) -> int:
        """Returns the rank at a place in a replica's pipeline."""
        if self.placement == "stages_together":
            return replica * self.n_pipeline + place
        return place * self.n_replicas + replica


def check_placement(placement: str) -> None:
    """Refuses an unknown placement.

    Raises:
        ValueError: If it is not one of `PLACEMENTS`; the message has the choices.
    """
    if placement not in PLACEMENTS:
        raise ValueError(
            f"placement must be {' or '.join(map(repr, PLACEMENTS))}, not {placement!r}"
        )


class Traffic(NamedTuple):
    """The bytes of a step.

    Attributes:
        messages: Bytes that rank ``a`` of a pipeline sends to rank ``b``, by
            ``(a, b)``. They are activations in one direction, and gradients in the
            other.
        gradients: Bytes of each rank's gradients as they are sent between hosts.
        exact: Bytes of each rank's gradients in float32, as they are sent within a
            host.
    """

    messages: dict[tuple[int, int], float]
    gradients: Sequence[float]
    exact: Sequence[float]


def cheaper_placement(
    traffic: Traffic,
    hosts: Sequence[Hashable],
    within: float = float("inf"),
    between: float = 1.0,
) -> str:
    """Returns the placement in which links are busy for less time.

    Args:
        traffic: The bytes of a step.
        hosts: Name or number of the host of each rank of the world. There are as many
            ranks as a pipeline has, for each replica.
        within: Bandwidth between ranks within a host, in bytes per second; infinite by
            default.
        between: Bandwidth between a host and the others, in bytes per second and
            direction. The host's ranks share it.

    Returns:
        str: One of `PLACEMENTS`; the first if both take as long.

    Raises:
        ValueError: If the number of ``hosts`` is wrong, or a bandwidth is not positive.

    Example:
        >>> little = Traffic({(0, 1): 10, (1, 0): 10}, gradients=[5, 5], exact=[20, 20])
        >>> cheaper_placement(little, hosts=['a', 'a', 'b', 'b'])
        'stages_together'
        >>> much = little._replace(gradients=[500, 500])
        >>> cheaper_placement(much, hosts=['a', 'a', 'b', 'b'])
        'replicas_together'
    """
    return min(
        PLACEMENTS,
        key=lambda name: placement_seconds(name, traffic, hosts, within, between),
    )


def placement_by_hosts(hosts: Sequence[Hashable], n_pipeline: int) -> str:
    """Returns the better placement if the bytes that ranks send are unknown.

    This is the one that sends fewer gradients between hosts. If both send as many, the
    one with fewer activations is returned. The choice suits ranks with more bytes of
    gradients than of activations, as with fully connected layers. For large
    activations, as in a network's first convolutions, use a plan, which has the bytes.

    Args:
        hosts: The host of each rank of the world; see :func:`cheaper_placement`.
        n_pipeline: Number of ranks of a pipeline.

    Returns:
        str: One of `PLACEMENTS`; the first if both are equally good.

    Raises:
        ValueError: If the number of ``hosts`` is wrong.

    Example:
        >>> placement_by_hosts(['a', 'a', 'b', 'b'], n_pipeline=2)
        'replicas_together'
        >>> placement_by_hosts(['a', 'b', 'c', 'd'], n_pipeline=2)
        'stages_together'
    """
    gradients = Traffic({}, [1.0] * n_pipeline, [1.0] * n_pipeline)
    neighbours = zip(range(n_pipeline), range(1, n_pipeline))
    pairs = [pair for a, b in neighbours for pair in ((a, b), (b, a))]
    nothing = [0.0] * n_pipeline
    activations = Traffic(dict.fromkeys(pairs, 1.0), nothing, nothing)
    return min(
        PLACEMENTS,
        key=lambda name: (
            placement_seconds(name, gradients, hosts),
            placement_seconds(name, activations, hosts),
        ),
    )


def placement_seconds(
    placement: str,
    traffic: Traffic,
    hosts: Sequence[Hashable],
    within: float = float("inf"),
    between: float = 1.0,
) -> float:
    """Returns how many seconds the links of a grid are busy in a step.

    Args:
        placement: One of `PLACEMENTS`.
        traffic: The bytes of a step.
        hosts: The host of each rank of the world; see :func:`cheaper_placement`.
        within: Bandwidth between ranks within a host, in bytes per second.
        between: Bandwidth between a host and the others, in bytes per second. With 1
            the result is in bytes.

    Returns:
        float: Seconds of the busiest link between hosts, and of the links within the
        busiest host. Computation may hide some of them, which is not taken into
        account.

    Raises:
        ValueError: If there is no such placement, the number of ``hosts`` is wrong, or
            a bandwidth is not positive.
    """
    grid = _grid(placement, traffic, hosts)
    if not (within > 0 and between > 0):
        raise ValueError(f"bandwidths must be positive, not {within} and {between}")
    leaving, entering, inside = Counter(), Counter(), Counter()
    for pipeline in grid:
        for (a, b), n_bytes in traffic.messages.items():
            source, target = pipeline[a], pipeline[b]
            if source == target:
                inside[source] += n_bytes
            else:
                leaving[source] += n_bytes
                entering[target] += n_bytes
    for rank, (coded, exact) in enumerate(zip(traffic.gradients, traffic.exact)):
        # Replicas on one host add up first, then one sum for each host is sent.
        nodes = Counter(pipeline[rank] for pipeline in grid)
        total = coded if len(nodes) > 1 else exact
        for host, n_replicas in nodes.items():
            inside[host] += (n_replicas - 1) * (exact + total)
            crossing = 2 * (len(nodes) - 1) / len(nodes) * coded
            leaving[host] += crossing
            entering[host] += crossing
    busiest = max(max(leaving[host], entering[host]) for host in set(hosts))
    return busiest / between + max(inside[host] for host in set(hosts)) / within


def _grid(
    placement: str, traffic: Traffic, hosts: Sequence[Hashable]
) -> list[list[Hashable]]:
    """Returns the host of each rank, by replica."""
    check_placement(placement)
    n_pipeline = len(traffic.gradients)
    if not hosts or len(hosts) % n_pipeline:
        raise ValueError(
            f"hosts are of {len(hosts)} ranks, which make no pipelines of {n_pipeline}"
        )
    grid = RankGrid(n_pipeline, len(hosts) // n_pipeline, placement)
    return [
        [hosts[grid.rank_of(replica, place)] for place in range(n_pipeline)]
        for replica in range(grid.n_replicas)
    ]
