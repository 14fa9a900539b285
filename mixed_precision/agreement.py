"""One decision on all ranks: step, or skip the step.

Every rank holds some of the model's parameters: those of its stages, and the same as
its replicas. One all-reduce takes the maximum, entry by entry, of

::

    [t, -t, scale, -scale, sum of squares of '/0/W', of '/0/b', of '/2/W', ...]

where a rank has 0 for parameters it does not hold, and infinity for gradients that are
not finite. So every rank knows which parameters overflowed, anywhere; a parameter of
which several ranks hold replicas counts once; and since nothing is added on the way,
the norm is the same bit for bit on every rank and for every cut of the model. Eight
bytes for each parameter of the model are small beside the parameter itself.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

#: What MPI may still write to after a wait was given up.
_abandoned: list[Any] = []

# A sum of squares from here on counts as not finite, so that all of them can be added
# up. Of float32 gradients none is as large; of float64 ones from 2**500 on.
_TOO_LARGE = 2.0**1000


class Agreement:
    """The ranks of a communicator, and the parameters they hold together.

    Args:
        comm: A ChainerMN communicator or an mpi4py one; ``None`` for one process
            alone.
        timeout (float): Seconds to wait for the other ranks.

    Attributes:
        paths (list): Of the parameters of all ranks; ``None`` before :meth:`gather`.

    Raises:
        TypeError: If ``comm`` is something else.
    """

    def __init__(self, comm: Any, timeout: float) -> None:
        self._timeout = timeout
        self._users_comm = None if comm is None else as_mpi(comm)
        # Its duplicate, so that messages cannot mix with the user's.
        self._comm: Any = None
        self.paths: list[str] | None = None

    def gather(self, paths: Sequence[str]) -> None:
        """Learns which parameters there are; a call of all ranks.

        Args:
            paths: Of the parameters that this rank holds.

        Raises:
            TimeoutError: If another rank does not come.
        """
        everywhere = set(paths)
        if self._users_comm is not None:
            before, self._comm = self._comm, self._duplicate()
            if before is not None:
                # Now, because all ranks are here.
                before.Free()
            everywhere = everywhere.union(*self._all_gather(sorted(everywhere)))
        self.paths = sorted(everywhere)
        self._positions = {path: i for i, path in enumerate(self.paths)}
        n = 4 + len(self.paths)
        self._mine, self._largest = np.zeros(n), np.zeros(n)

    def close(self) -> None:
        """Frees the communicator, and forgets the parameters; a call of all ranks."""
        if self._comm is not None:
            self._comm.Free()
        self._comm = self.paths = None

    def positions(self, paths: Sequence[str]) -> np.ndarray:
        """Returns where :meth:`reduce` is to put the sums of these parameters.

        Raises:
            ValueError: If one was not there in :meth:`gather`.
        """
        new = [path for path in paths if path not in self._positions]
        if new:
            raise ValueError(
                f"{', '.join(new)} came after the first update, in which the ranks"
                f" agree on the model's parameters: add parameters before it, or call"
                f" setup() again on every rank, which forgets masters and state"
            )
        return 4 + np.array([self._positions[path] for path in paths], dtype=np.int64)

    def reduce(
        self, positions: np.ndarray, sums: np.ndarray, t: int, scale: float
    ) -> tuple[float, list[str]]:
        """Returns what all ranks' gradients come to; the same on every rank.

        Args:
            positions: From :meth:`positions`.
            sums: Sums of squares of this rank's gradients, in the same order.
            t (int): Number of updates so far.
            scale (float): The loss scale.

        Returns:
            The sum of squares over all parameters of the model, and the paths of those
            whose gradients are not finite.

        Raises:
            RuntimeError: On every rank, if their numbers of updates or scales differ.
            TimeoutError: If another rank does not come.
        """
        mine = self._mine
        mine[4:] = 0
        # At the larger one, where this rank has two copies of a parameter.
        np.maximum.at(mine, positions, np.where(sums < _TOO_LARGE, sums, math.inf))
        mine[:4] = t, -t, scale, -scale
        largest = mine
        if self._comm is not None:
            # Here, because without a communicator no MPI is needed.
            from mpi4py import MPI

            largest = self._largest
            request = self._comm.Iallreduce(mine, largest, MPI.MAX)
            self._wait(request, "to update", (mine, largest))
            self._compare(t, scale)
        squares = largest[4:]
        overflown = np.flatnonzero(np.isinf(squares))
        # Rounded once, so that the order of the parameters is of no account.
        total = math.inf if overflown.size else math.fsum(squares)
        return total, [self.paths[i] for i in overflown]

    def _compare(self, t: int, scale: float) -> None:
        most, least, largest, smallest = self._largest[:4]
        if most != -least:
            raise RuntimeError(
                f"ranks are at different updates, between number {int(-least)} and"
                f" {int(most)}; rank {self._comm.rank} has made {t}. Every rank must"
                f" call update() equally often, and load the same snapshot"
            )
        if largest != -smallest:
            raise RuntimeError(
                f"ranks have different loss scales, from {-smallest:g} to {largest:g};"
                f" rank {self._comm.rank} has {scale:g}. Give every rank the same"
                f" loss_scale, and load the same snapshot"
            )

    def _duplicate(self) -> Any:
        new, request = self._users_comm.Idup()
        self._wait(request, "to make their first update", new)
        return new

    def _all_gather(self, value: Any) -> list[Any]:
        mine = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        sizes = np.empty(self._comm.size, dtype=np.int64)
        size = np.array([mine.size], dtype=np.int64)
        request = self._comm.Iallgather(size, sizes)
        self._wait(request, "to make their first update", (size, sizes))
        everything = np.empty(sizes.sum(), dtype=np.uint8)
        request = self._comm.Iallgatherv(mine, (everything, sizes))
        self._wait(request, "to make their first update", (mine, everything, sizes))
        ends = np.cumsum(sizes)
        return [
            pickle.loads(everything[end - size : end].tobytes())
            for size, end in zip(sizes, ends)
        ]

    def _wait(self, request: Any, purpose: str, used: Any) -> None:
        try:
            wait(
                request.Test,
                self._timeout,
                lambda: (
                    f"all {self._users_comm.size} ranks {purpose} (rank"
                    f" {self._users_comm.rank} is here)"
                ),
            )
        except TimeoutError:
            _abandoned.append((request, used))
            raise


def as_mpi(comm: Any) -> Any:
    """Returns the mpi4py communicator of a ChainerMN or mpi4py communicator."""
    from mpi4py import MPI

    mpi_comm = getattr(comm, "mpi_comm", comm)
    if not isinstance(mpi_comm, MPI.Comm):
        raise TypeError(
            f"comm must be a ChainerMN communicator or an mpi4py one, not"
            f" {type(comm).__name__}"
        )
    return mpi_comm


def wait(
    test: Callable[[], Any], timeout: float, waiting_for: Callable[[], str]
) -> None:
    """Polls until ``test`` returns something true, without burning the core.

    Raises:
        TimeoutError: After ``timeout`` seconds.
    """
    start = time.perf_counter()
    while not test():
        waited = time.perf_counter() - start
        if waited > timeout:
            raise TimeoutError(
                f"waited {waited:.0f} s for {waiting_for()}. A rank is stopped, cut"
                f" off, or does something else; if it is only slow, give a longer"
                f" timeout"
            )
        # At first at once, for the latency; the core may be another rank's.
        if waited > 2e-4:
            time.sleep(min(1e-3, max(2e-5, waited / 100)))
