"""Ranks as replicas of a pipeline."""

from __future__ import annotations

import operator
import socket
from typing import Any

from divisible.communication.aborting import abort_on_error
from divisible.communication.agreement import agree
from divisible.communication.busy import free
from divisible.communication.collectives import all_gather, as_mpi
from divisible.communication.communicators import announcement, free_dropped, split
from divisible.communication.errors import TIMEOUT
from divisible.communication.roll_call import roll_call
from divisible.placement import RankGrid, check_placement, placement_by_hosts

_PURPOSE = "to make the grid"
_AUTO = "auto"


class Grid:
    """Divides ranks into replicas of a pipeline.

    ::

        'stages_together'                 'replicas_together'

                   rank in the pipeline              rank in the pipeline
                     0   1   2                         0   1   2
        replica 0    0   1   2            replica 0    0   2   4       numbers are ranks
        replica 1    3   4   5            replica 1    1   3   5       of ``comm``

    A row is a pipeline, through which activations pass; a column has the same stages,
    whose gradients are exchanged. Neighbours in number mostly share a host, so the
    placement says which of the two stays within hosts.

    It is to be made on all ranks.

    Args:
        comm: A ChainerMN communicator or an mpi4py one.
        n_pipeline (int): How many ranks a pipeline has; a divisor of those of ``comm``.
        placement (str): ``'stages_together'``, ``'replicas_together'``, or ``'auto'``
            for what sends fewer gradients between the hosts that there are, mostly
            ``'replicas_together'`` where hosts have several ranks. What ranks send is
            known to a plan: :meth:`of` asks it.
        timeout (float): Seconds to wait for the other ranks.

    Attributes:
        world (mpi4py.MPI.Comm): Of all ranks: ``comm``.
        pipeline (mpi4py.MPI.Comm): Of the ranks of this rank's replica.
        data (mpi4py.MPI.Comm): Of the ranks with the same stages, one of each replica.
        n_pipeline (int): As given.
        n_replicas (int): How many replicas there are.
        replica (int): The number of this rank's; its rank in ``data``.
        placement (str): As given, or chosen.
        shares (list or None): For each replica a number, in whose ratio minibatches are
            divided, if the grid is of a plan that has them.

    Raises:
        TypeError, ValueError: If an argument is wrong.
        DisagreementError: On the others then; and on all if the ranks' arguments
            differ.
        StallError: If another rank does not come.

    Example:
        >>> from mpi4py import MPI
        >>> grid = Grid(MPI.COMM_SELF, n_pipeline=1)
        >>> grid.n_replicas, grid.replica, grid.pipeline.size, grid.data.size
        (1, 0, 1, 1)
    """

    def __init__(
        self,
        comm: Any,
        n_pipeline: int,
        *,
        placement: str = "stages_together",
        timeout: float = TIMEOUT,
    ) -> None:
        # First of all: others may wait already for a rank that fails here.
        abort_on_error()
        self.world = as_mpi(comm)
        refusal: Exception | None = None
        try:
            n_pipeline = _check(n_pipeline, self.world.size, placement)
        except (TypeError, ValueError) as error:
            refusal = error
        given = {"n_pipeline": n_pipeline, "placement": placement}
        here = socket.gethostname(), announcement()
        said = agree(self.world, given, refusal, timeout, _PURPOSE, here)
        if placement == _AUTO:
            placement = placement_by_hosts([host for host, _ in said], n_pipeline)
        self.n_pipeline, self.placement = n_pipeline, placement
        self.shares: list[float] | None = None
        self.n_replicas = self.world.size // n_pipeline
        self._ranks = RankGrid(n_pipeline, self.n_replicas, placement)
        self.replica, stage = self.place(self.world.rank)
        name = free_dropped([of_comm for _, of_comm in said])
        self.pipeline = split(
            self.world,
            self.replica,
            stage,
            timeout,
            self,
            f"{name} replica {self.replica}",
            _PURPOSE,
        )
        self.data = split(
            self.world,
            stage,
            self.replica,
            timeout,
            self,
            f"{name} stage {stage}",
            _PURPOSE,
        )
        roll_call(self.pipeline).titles = {
            i: f"replica {self.replica}; rank {self.rank_of(self.replica, i)} of all"
            for i in range(n_pipeline)
        }
        roll_call(self.data).titles = {
            i: f"replica {i}; rank {self.rank_of(i, stage)} of all"
            for i in range(self.n_replicas)
        }

    @classmethod
    def of(cls, plan: Any, comm: Any, *, placement: str = "stages_together") -> Grid:
        """Returns the grid that a plan is for.

        Args:
            plan (Plan): With its replicas, and what part of a minibatch each is to
                have, which :class:`ReplicaIterator` looks for here.
            comm: As of :class:`Grid`; its ranks must be as many as the plan's.
            placement: Likewise; or ``'auto'`` for what sends less between the hosts
                that there are, by a plan of :func:`~divisible.best_plan`.

        Raises:
            ValueError: If they are not, or such a plan is needed.
            StallError: If another rank does not come.

        Example:
            >>> from mpi4py import MPI
            >>> from divisible import Plan
            >>> Grid.of(Plan([0, 3, 5], stages_per_rank=2), MPI.COMM_SELF).n_pipeline
            1
        """
        n_ranks, size = plan.n_ranks, as_mpi(comm).size
        if n_ranks != size:
            raise ValueError(
                f"the plan is for {n_ranks} ranks in {plan.replicas} rows of"
                f" {n_ranks // plan.replicas}, but there are {size}: start {n_ranks}"
                f" ranks, or make another plan"
            )
        if placement == _AUTO:
            hosts = all_gather(as_mpi(comm), socket.gethostname(), TIMEOUT, _PURPOSE)
            placement = plan.placement(hosts)
        grid = cls(comm, n_ranks // plan.replicas, placement=placement)
        grid.shares = plan.shares
        return grid

    def place(self, rank: int) -> tuple[int, int]:
        """Returns the replica of a rank of ``world``, and its rank in that pipeline."""
        return self._ranks.place(rank)

    def rank_of(self, replica: int, rank: int) -> int:
        """Returns the rank in ``world`` of a replica's rank in its pipeline."""
        return self._ranks.rank_of(replica, rank)

    def close(self) -> None:
        """Frees ``pipeline`` and ``data``; a call of all ranks."""
        for comm in (self.pipeline, self.data):
            free(comm)

    def __enter__(self) -> Grid:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        # With an error the other ranks may not come.
        if kind is None:
            self.close()


def _check(n_pipeline: int, n_ranks: int, placement: str) -> int:
    """Returns the ranks of a pipeline as a plain number, if there can be so many."""
    if placement != _AUTO:
        check_placement(placement)
    try:
        n = operator.index(n_pipeline)
    except TypeError:
        raise TypeError(f"n_pipeline must be an integer, not {n_pipeline!r}") from None
    if n < 1 or n_ranks % n:
        fitting = [i for i in range(1, n_ranks + 1) if n_ranks % i == 0]
        raise ValueError(
            f"n_pipeline is {n}, but {n_ranks} ranks are divided into pipelines of"
            f" {' or '.join(map(str, fitting))}: give one of these, or start another"
            f" number of ranks"
        )
    return n
