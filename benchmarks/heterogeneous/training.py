"""Networks that train on unequal hosts, each in its way."""

from __future__ import annotations

from typing import NamedTuple

import chainer
import numpy as np
from mpi4py import MPI

from heterogeneous import (
    RectangularMLP,
    RectangularPartition,
    Remapper,
    method_1,
    method_h_rev,
    rectangular_partition,
)

#: Seconds that a rank may wait for another.
TIMEOUT = 300.0
LR = 0.5


class Way(NamedTuple):
    """A way to train.

    Attributes:
        mapping: ``'method 1'``, ``'H_rev'``, ``'SRPM'``, ``'SRPM, any'``; ``'equal'``
            for a rectangular partition of equal abilities.
        groups: Number of groups in ``'method 1'`` and ``'H_rev'``.
        remaps: ``'given'`` if DRPM begins with the abilities, ``'unknown'`` if without;
            ``'kept'`` if it only measures; ``None`` without DRPM.
        abilities: Abilities that are believed; ``None`` for those of the job.
        is_printed: Whether DRPM is the one that the paper prints.
    """

    mapping: str
    groups: int = 1
    remaps: str | None = None
    abilities: list[float] | None = None
    is_printed: bool = False


def partition_of(
    way: Way, abilities: list[float], shape: list[int]
) -> RectangularPartition:
    """Returns the mapping with which a way begins.

    Args:
        way: The way.
        abilities: Abilities of the hosts, if the way has no others.
        shape: n, m, l and s.
    """
    believed = way.abilities or abilities
    if way.mapping == "method 1":
        return method_1(len(abilities), way.groups, *shape)
    if way.mapping == "H_rev":
        return method_h_rev(believed, way.groups, *shape)
    if way.mapping == "equal":
        return rectangular_partition([1.0] * len(abilities), *shape)
    order = "any" if way.mapping == "SRPM, any" else "ascending"
    return rectangular_partition(believed, *shape, order=order)


class Training:
    """A network that trains in one way.

    Args:
        comm: Communicator of the ranks.
        way: Way to train.
        abilities: Abilities of the hosts.
        shape: n, m, l and s.
        every: Iterations between two checks.
        last: Iterations that count in a check; ``None`` for those of the remapper.
        lr: Learning rate, for the mean over samples.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        way: Way,
        abilities: list[float],
        shape: list[int],
        every: int,
        last: int | None = None,
        lr: float = LR,
    ) -> None:
        partition = partition_of(way, abilities, shape)
        self.mlp = RectangularMLP(*shape[:3], comm, partition, timeout=TIMEOUT)
        self._optimizer = chainer.optimizers.SGD(lr).setup(self.mlp)
        thresholds = {"whole": 0.0, "line": 0.0} if way.remaps == "kept" else {}
        self.remapper = way.remaps and Remapper(
            self.mlp,
            self._optimizer,
            abilities=None if way.remaps == "unknown" else partition.abilities,
            every=every,
            last=last,
            filter=not way.is_printed,
            waits=way.is_printed,
            timeout=TIMEOUT,
            **thresholds,
        )

    def warm_up(self, x: np.ndarray, t: np.ndarray) -> None:
        """Gets memory, and learns how large messages are; DRPM does not count it."""
        for _ in range(2):
            self.mlp.step(x, t)
            self._optimizer.update()

    def steps(self, x: np.ndarray, t: np.ndarray, n: int) -> None:
        """Trains with all samples, a number of times."""
        for _ in range(n):
            self.step(x, t)

    def step(self, x: np.ndarray, t: np.ndarray) -> float:
        """Trains with all samples once, and returns the error before."""
        if self.remapper:
            return self.remapper.step(x, t)["loss"]
        error = self.mlp.step(x, t)["loss"]
        self._optimizer.update()
        return error


def samples(shape: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns samples like windows of letters, and targets."""
    n, _, l, s = shape  # noqa: E741
    random = np.random.RandomState(0)
    x = (random.rand(s, n) < 1 / 29).astype(np.float32)
    return x, (random.rand(s, l) < 0.2).astype(np.float32)
