"""A replica's part of each minibatch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np

from data_parallel import json_arrays
from data_parallel.grid import Grid
from divisible.communication.collectives import all_gather, broadcast
from divisible.communication.errors import TIMEOUT, DisagreementError
from divisible.planning.shares import integer_shares


class ReplicaIterator(chainer.dataset.Iterator):
    """Reads a replica's part of each minibatch of an iterator.

    ::

        order of the iterator    7 2 9 4 1 0 3 8     a minibatch of 8
        replica 0, share 1       7 2                 each reads its own samples only
        replica 1, share 3           9 4 1 0 3 8

    The iterator of replica 0 decides the minibatches. Its order counts, so it may
    shuffle with a generator that was never seeded. Epochs are those of the iterator.
    The iterator's state is saved, so a run can continue with other replicas, or none.
    If a minibatch has fewer samples than there are replicas, some replicas get an empty
    list.

    Each replica has an iterator over the same data set, on the rank that reads it.

    Args:
        iterator (chainer.dataset.Iterator): Iterator over whole minibatches. It must
            read by ``dataset[i]`` in this process, as ``SerialIterator`` does; only its
            positions are used.
        grid (Grid): Grid of the replicas.
        shares: For each replica its share of minibatches, relative to the others, such
            as its speed. With ``None`` the shares are those of the grid's plan, or
            equal ones without a plan. With ``'measured'`` they are the same, until
            :class:`pipeline.Rebalance` has measured the replicas. Each part is within
            one sample of its share, and has at least one sample if there are enough.
        timeout (float): Seconds to wait for the other replicas.

    Attributes:
        are_measured (bool): Whether the shares are ``'measured'``.
        is_watched (bool): Whether the replicas are being measured. Code that measures
            them sets it; before that no sample is read.

    Raises:
        TypeError, ValueError: If an argument is wrong.

    Example:
        >>> from chainer.iterators import SerialIterator
        >>> from mpi4py import MPI
        >>> from data_parallel import Grid
        >>> grid = Grid(MPI.COMM_SELF, n_pipeline=1)
        >>> iterator = ReplicaIterator(SerialIterator('abcde', 2, shuffle=False), grid)
        >>> next(iterator), iterator.epoch_detail
        (['a', 'b'], 0.4)
    """

    def __init__(
        self,
        iterator: Any,
        grid: Grid,
        *,
        shares: Sequence[float] | str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self.are_measured, self.is_watched = _is_measured(shares), False
        if shares is None or self.are_measured:
            shares = grid.shares or [1] * grid.n_replicas
        given = _checked(shares, grid.n_replicas)
        # Processes of such an iterator have the data set already.
        in_other_processes = isinstance(
            iterator, chainer.iterators.MultiprocessIterator
        )
        if in_other_processes or not hasattr(iterator, "dataset"):
            raise TypeError(
                f"a {type(iterator).__name__} does not read by dataset[i] in this"
                f" process, so a replica could not read its own samples only: give a"
                f" SerialIterator"
            )
        self.dataset = iterator.dataset
        # A copy is used, so that the user's own iterator is unchanged.
        self._iterator = copy.copy(iterator)
        self._iterator.dataset = _Positions(len(self.dataset))
        self._shares, self._grid, self._timeout = given, grid, timeout
        self._have_agreed, self._batch_size = False, 0

    @property
    def shares(self) -> list[float]:
        """For each replica its share of minibatches, relative to the others.

        It may be set between two minibatches, in all replicas alike.
        """
        return list(self._shares)

    @shares.setter
    def shares(self, shares: Sequence[float]) -> None:
        self._shares = _checked(shares, self._grid.n_replicas)
        self._have_agreed = False

    def __next__(self) -> list:
        if self.are_measured and not self.is_watched:
            raise RuntimeError(
                "the shares are to be measured, but nobody does:"
                " trainer.extend(Rebalance(build)), or give ReplicaIterator the shares"
            )
        positions = self._of_replica_0(next(self._iterator))
        total, replica = len(positions), self._grid.replica
        least = int(total >= self._grid.n_replicas)
        sizes = integer_shares(self._shares, total, least)
        start = sum(sizes[:replica])
        mine = positions[start : start + sizes[replica]]
        return [self.dataset[int(i)] for i in mine]

    next = __next__

    def _of_replica_0(self, positions: list[int]) -> np.ndarray:
        """Returns the positions of the minibatch, as replica 0 has them."""
        if self._grid.n_replicas == 1:
            return np.array(positions, dtype=np.int64)
        self._agree()
        n = len(positions)
        # The length is equal in all replicas, even if one is at another minibatch.
        told = np.zeros(1 + max(n, self._batch_size), dtype=np.int64)
        told[: n + 1] = n, *positions
        broadcast(self._grid.data, told, 0, self._timeout, "a minibatch's samples")
        if told[0] != n:
            raise DisagreementError(
                f"replica 0 has a minibatch of {told[0]} samples, and replica"
                f" {self._grid.replica} one of {n}: give all the same iterator, and"
                f" load the same snapshot"
            )
        return told[1 : n + 1]

    def _agree(self) -> None:
        if self._have_agreed:
            return
        comm, inner = self._grid.data, self._iterator
        self._batch_size = getattr(inner, "batch_size", None) or 0
        mine = {
            "shares": self._shares,
            "the length of the data set": len(self.dataset),
            "batch_size": self._batch_size,
            "repeat": bool(getattr(inner, "repeat", getattr(inner, "_repeat", False))),
        }
        said = all_gather(comm, mine, self._timeout, "to read a minibatch")
        for replica, theirs in enumerate(said):
            for name, value in said[0].items():
                if theirs[name] != value:
                    raise DisagreementError(
                        f"the ReplicaIterators differ: {name} is {value} in replica 0,"
                        f" and {theirs[name]} in replica {replica}"
                    )
        self._have_agreed = True

    def __getattr__(self, name: str) -> Any:
        # Epochs, the order and other attributes are the iterator's.
        if name.startswith("__") or name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)

    @property
    def epoch(self) -> int:
        """Completed sweeps."""
        return self._iterator.epoch

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last minibatch completed a sweep."""
        return self._iterator.is_new_epoch

    def reset(self) -> None:
        """Restarts the iterator."""
        self._iterator.reset()

    def finalize(self) -> None:
        """Ends the iterator."""
        self._iterator.finalize()

    def serialize(self, serializer: Any) -> None:
        """Loads or saves the state of the iterator, and measured shares."""
        self._iterator.serialize(serializer)
        if self.are_measured:
            state = json_arrays.serialize(serializer, "shares", {"shares": self.shares})
            # Other numbers of replicas are measured again.
            if state is not None and len(state["shares"]) == self._grid.n_replicas:
                self.shares = state["shares"]


def _is_measured(shares: Any) -> bool:
    if isinstance(shares, str) and shares != "measured":
        raise ValueError(f"shares must be numbers or 'measured', not {shares!r}")
    return isinstance(shares, str)


def _checked(shares: Sequence[float], n_replicas: int) -> list[float]:
    """Returns shares as a list, if each replica has one."""
    given = list(shares)
    if len(given) != n_replicas:
        raise ValueError(
            f"there are {len(given)} shares, {given}, for {n_replicas} replicas: give"
            f" each one"
        )
    # This raises an error for values that cannot be shares.
    integer_shares(given, n_replicas)
    return given


class _Positions:
    """A data set whose samples are their own positions."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> int:
        return int(i)
