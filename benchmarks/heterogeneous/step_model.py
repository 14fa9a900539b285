"""Simulated seconds of a step on unequal hosts, by their work and their messages.

::

    column 0   forward | sum within the column | backward |
    column 1   forward |   sum  | backward | wait         | sum between columns

Each host sends and receives at the rate of its link, both at once. Messages take no
other time: no latency, no work of the processor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heterogeneous import RectangularPartition
from heterogeneous.sums import segments

#: Bytes of a number.
SIZE = 4


def step_seconds(
    partition: RectangularPartition,
    abilities: Sequence[float],
    unit: float,
    bandwidth: float,
) -> float:
    """Returns the seconds of a step.

    Args:
        partition: Partition of the hosts.
        abilities: Abilities of the hosts.
        unit: Seconds that a host of ability 1 needs for a unit and a sample.
        bandwidth: Bytes per second of a link.

    Example:
        >>> from heterogeneous import method_1
        >>> p = method_1(2, 2, 203, 80, 26, 1024)
        >>> round(step_seconds(p, [1, 0.5], 1e-6, float("inf")), 5)
        0.08192
        >>> round(step_seconds(p, [1, 0.5], 1e-6, 1e6) - 0.08192, 5)
        0.14656
    """
    work = np.array([r.work for r in partition.rectangles])
    computing = work * unit / np.asarray(abilities)
    of_columns = [
        computing[list(column)].max() + seconds
        for column, seconds in zip(partition.columns, _within(partition, bandwidth))
    ]
    return float(max(of_columns) + _between(partition, bandwidth))


def _within(partition: RectangularPartition, bandwidth: float) -> list[float]:
    """Returns the seconds of each column's sum: the first term of equation (8)."""
    found = []
    for column in partition.columns:
        start, stop = partition.rectangles[column[0]].samples
        elements = 2 * (len(column) - 1) * partition.l * (stop - start)
        found.append(elements * SIZE / bandwidth)
    return found


def _between(partition: RectangularPartition, bandwidth: float) -> float:
    """Returns the seconds of the sum between columns.

    The collector of some units receives them from each other column, and sends the
    sums: in either direction, the host with the most elements counts.
    """
    out, into = np.zeros((2, partition.n_processors))
    for start, stop, ranks, collector in segments(partition):
        elements = (stop - start) * (partition.n + partition.l)
        for rank in set(ranks) - {collector}:
            out[rank] += elements
            into[collector] += elements
    # The sums travel the same ways back.
    return 2 * float(np.maximum(out, into).max()) * SIZE / bandwidth


def unit_seconds(
    alone: Sequence[Sequence[float]],
    abilities: Sequence[float],
    shape: tuple[int, int, int, int],
) -> float:
    """Returns the seconds of a unit and a sample on a host of ability 1.

    Args:
        alone: Seconds of a step of each host alone with all the work, by round.
        abilities: Abilities of the hosts.
        shape: n, m, l and s.

    Example:
        >>> unit_seconds([[2.0, 4.0], [2.0, 4.4]], [1.0, 0.5], (203, 10, 26, 100))
        0.002
    """
    _, m, _, s = shape
    return float(np.median(np.array(alone) * np.asarray(abilities))) / (m * s)
