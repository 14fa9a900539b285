"""One number for each parameter of a model that lies on several ranks.

Each rank holds some of the model's parameters: those of its stages, which its replicas
also hold. One all-reduce computes the maximum, entry by entry, of this array:

::

    [a, -a, ..., sum of squares of '/0/W', of '/0/b', of '/2/W', ...]

The number ``a`` must be equal on all ranks. A rank has 0 for parameters that it does
not hold. So a parameter counts once, even if several ranks hold copies or replicas of
it. The all-reduce adds nothing, so the sums are the same bit for bit on every rank and
for every cut of the model. It sends eight bytes for each parameter array, few compared
with the array itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np


class Reduced(NamedTuple):
    """The maxima over all ranks.

    Attributes:
        least: The smallest of the numbers that must be equal, in the order given.
        most: The largest of these numbers.
        sums: A sum for each of the model's parameters, float64; also infinity and NaN.
    """

    least: np.ndarray
    most: np.ndarray
    sums: np.ndarray


class Reduction:
    """The maxima over all ranks, on their way.

    Args:
        mine (numpy.ndarray): Numbers of this rank, int64.
        n_alike (int): Number of those that must be equal.
        comm: Communicator of the ranks; ``None`` for one process alone.

    Attributes:
        numbers (numpy.ndarray): The largest numbers, when the reduction is complete.
    """

    def __init__(self, mine: np.ndarray, n_alike: int, comm: Any) -> None:
        self._n_alike, self._comm, self.numbers = n_alike, comm, mine
        if comm is not None:
            # Imported here and below, because one process needs no MPI.
            from mpi4py import MPI

            self.numbers = np.empty_like(mine)
            self._request = comm.Iallreduce(mine, self.numbers, MPI.MAX)

    def test(self) -> bool:
        """Returns whether the reduction is complete."""
        return self._comm is None or self._request.Test()

    def finish(self, timeout: float, watch: Callable[[], None] | None = None) -> None:
        """Waits until the reduction is complete.

        Args:
            timeout (float): Seconds to wait for the other ranks.
            watch: Called while waiting; may raise an error to end the wait.

        Raises:
            StallError: If another rank does not begin it in time.
        """
        if self._comm is not None:
            from divisible.communication.collectives import wait_for_all

            wait_for_all(self._comm, self._request, timeout, "to update", watch)

    def result(self) -> Reduced:
        """Returns the maxima; to be called when the reduction is complete."""
        largest, n = self.numbers, self._n_alike
        return Reduced(
            (-largest[n : 2 * n]).view(np.float64),
            largest[:n].view(np.float64),
            largest[2 * n :].view(np.float64),
        )


class ParameterSums:
    """The ranks of a communicator, and the parameters they hold together.

    Args:
        comm: A ChainerMN communicator or an mpi4py one. ``None`` stands for one
            process, which needs no MPI. A communicator of one rank sends nothing
            either.
        timeout (float): Seconds to wait for the other ranks.
        watch: Called while waiting; may raise an error to end the wait.

    Attributes:
        rank (int): This rank.
        paths (list): Paths of the parameters of all ranks; ``None`` before
            :meth:`gather`.

    Raises:
        TypeError: If ``comm`` is something else.

    Example:
        >>> sums = ParameterSums(None, timeout=10)
        >>> sums.gather(["/1/W", "/0/W"])
        [[]]
        >>> positions = sums.positions(["/1/W", "/0/W"])
        >>> sums.reduce(positions, [4.0, 9.0]).sums
        array([9., 4.])
    """

    def __init__(
        self, comm: Any, timeout: float, watch: Callable[[], None] | None = None
    ) -> None:
        self._timeout, self._watch = timeout, watch
        self._users_comm = None
        self.rank = 0
        if comm is not None:
            from divisible.communication.collectives import as_mpi

            users_comm = as_mpi(comm)
            self.rank = users_comm.rank
            self._users_comm = users_comm if users_comm.size > 1 else None
        # A duplicate of the user's communicator, so that messages cannot mix with his.
        self._comm: Any = None
        self.paths: list[str] | None = None

    def gather(self, paths: Sequence[str], notes: Sequence[Any] = ()) -> list:
        """Collects the parameters of all ranks; a call of all ranks.

        Args:
            paths: Paths of the parameters that this rank holds.
            notes: Data for the other ranks; picklable.

        Returns:
            The ``notes`` of every rank, in rank order.

        Raises:
            StallError: If another rank does not call this in time.
        """
        said = self._all_gather((list(paths), list(notes)))
        self.paths = sorted(set().union(*(theirs for theirs, _ in said)))
        self._positions = {path: i for i, path in enumerate(self.paths)}
        return [theirs for _, theirs in said]

    def _all_gather(self, value: Any) -> list:
        if self._users_comm is None:
            return [value]
        from divisible.communication.busy import free
        from divisible.communication.collectives import all_gather
        from divisible.communication.communicators import (
            announcement,
            duplicate,
            free_dropped,
        )

        purpose = "to make the first update"
        comm, before = self._users_comm, self._comm
        said = all_gather(comm, (value, announcement()), self._timeout, purpose)
        name = free_dropped([of_comm for _, of_comm in said])
        self._comm = duplicate(comm, self._timeout, self, name, purpose)
        if before is not None:
            # All ranks are in this call, so the old communicator can be freed.
            free(before)
        return [theirs for theirs, _ in said]

    def close(self) -> None:
        """Frees the communicator, and the list of parameters; a call of all ranks."""
        if self._comm is not None:
            from divisible.communication.busy import free

            free(self._comm)
        self._comm = self.paths = None

    def positions(self, paths: Sequence[str]) -> np.ndarray:
        """Returns the positions of parameters in :attr:`paths`.

        Raises:
            KeyError: If no rank had a parameter in :meth:`gather`; has their paths.
        """
        new = [path for path in paths if path not in self._positions]
        if new:
            raise KeyError(*new)
        return np.array([self._positions[path] for path in paths], dtype=np.int64)

    def reduce(
        self,
        positions: np.ndarray,
        sums: Sequence[float],
        alike: Sequence[float] = (),
    ) -> Reduced:
        """Returns the maxima over all ranks; the same on every rank.

        The arguments are those of :meth:`begin`.

        Raises:
            StallError: If another rank does not call this in time.
        """
        reduction = self.begin(positions, sums, alike)
        reduction.finish(self._timeout, self._watch)
        return reduction.result()

    def begin(
        self,
        positions: np.ndarray,
        sums: Sequence[float],
        alike: Sequence[float] = (),
    ) -> Reduction:
        """Begins to compute the maxima over all ranks.

        Args:
            positions: The positions of this rank's parameters; see :meth:`positions`.
            sums: Numbers of these parameters, in the same order, 0 at least, or NaN. If
                two are of one parameter, the larger one counts.
            alike: Numbers that must be equal on all ranks, 0 at least.
        """
        # The bits of non-negative floats, read as integers, have the floats' order,
        # with NaN behind infinity. MPI does not specify the maximum of a NaN.
        bits = np.array(alike, dtype=np.float64).view(np.int64)
        mine = np.array(sums, dtype=np.float64)
        mine[np.isnan(mine)] = np.nan
        values = np.zeros(len(self.paths), dtype=np.int64)
        np.maximum.at(values, positions, mine.view(np.int64))
        mine = np.concatenate([bits, -bits, values])
        return Reduction(mine, len(bits), self._comm)
