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
from divisible.communication.errors import TIMEOUT, check_timeout
from divisible.communication.wait_queries import wait_queries
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

    A row is a pipeline, through which activations pass. A column has the same stages,
    whose gradients are exchanged. Ranks with neighbouring numbers mostly share a host,
    so the placement decides whether rows or columns stay within hosts.

    All ranks must make the grid.

    Args:
        comm: A ChainerMN communicator or an mpi4py one.
        n_pipeline (int): Number of ranks of a pipeline; a divisor of the size of
            ``comm``.
        placement (str): ``'stages_together'``, ``'replicas_together'``, or ``'auto'``
            for the one that sends fewer gradients between the present hosts. This is
            mostly ``'replicas_together'`` if hosts have several ranks. A plan knows the
            bytes that ranks send: see :meth:`of`.
        timeout (float): Seconds to wait for the other ranks.

    Attributes:
        world (mpi4py.MPI.Comm): Communicator of all ranks: ``comm``.
        pipeline (mpi4py.MPI.Comm): Communicator of the ranks of this rank's replica.
        data (mpi4py.MPI.Comm): Communicator of the ranks with the same stages, one of
            each replica.
        n_pipeline (int): Number of ranks of a pipeline.
        n_replicas (int): Number of replicas.
        replica (int): Number of this rank's replica, which is its rank in ``data``.
        placement (str): The given or chosen placement.
        shares (list or None): For each replica its share of minibatches, relative to
            the others, if the grid was made for a plan with shares.

    Raises:
        TypeError, ValueError: If an argument of this rank is wrong.
        DisagreementError: If an argument of another rank is wrong, or the ranks'
            arguments differ.
        StallError: If another rank does not call this in time.

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
        # This comes first, because others may already wait for a rank that fails here.
        abort_on_error()
        self.world = as_mpi(comm)
        refusal: Exception | None = None
        try:
            n_pipeline = _check(n_pipeline, self.world.size, placement)
            check_timeout(timeout)
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
        wait_queries(self.pipeline).titles = {
            i: f"replica {self.replica}; rank {self.rank_of(self.replica, i)} of all"
            for i in range(n_pipeline)
        }
        wait_queries(self.data).titles = {
            i: f"replica {i}; rank {self.rank_of(i, stage)} of all"
            for i in range(self.n_replicas)
        }

    @classmethod
    def of(cls, plan: Any, comm: Any, *, placement: str = "stages_together") -> Grid:
        """Returns the grid for a plan.

        Args:
            plan (Plan): Plan with its replicas, and their shares of a minibatch, which
                :class:`ReplicaIterator` reads from the grid.
            comm: Communicator; see :class:`Grid`. Its size must be the plan's number of
                ranks.
            placement: Placement; see :class:`Grid`. With a plan of
                :func:`~divisible.best_plan`, ``'auto'`` is the placement that sends
                fewer bytes between the present hosts.

        Raises:
            ValueError: If the number of ranks is wrong, or ``'auto'`` needs another
                plan.
            StallError: If another rank does not call this in time.

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
        """Returns the replica of a rank of ``world``, and its rank in the pipeline."""
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
        # After an error the other ranks may not call this.
        if kind is None:
            self.close()


def _check(n_pipeline: int, n_ranks: int, placement: str) -> int:
    """Returns the number of ranks of a pipeline as an integer, if it is possible."""
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
