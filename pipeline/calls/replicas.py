"""The grid of a pipeline's replicas, and the names of its ranks in messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from data_parallel import Grid
from divisible.communication.collectives import as_mpi
from divisible.planning.shares import integer_shares


def world_of(comm: Any) -> MPI.Comm:
    """Returns the communicator of all ranks, from one of ChainerMN, mpi4py or a grid.

    Raises:
        TypeError: If ``comm`` is not one of these.
    """
    return comm.world if isinstance(comm, Grid) else as_mpi(comm)


def replicas_of(comm: Any) -> Grid | None:
    """Returns the grid if there are several replicas, else ``None``."""
    return comm if isinstance(comm, Grid) and comm.n_replicas > 1 else None


def part_of(grid: Grid | None, arrays: Any) -> Any:
    """Returns what a replica has of a minibatch, as a ``ReplicaIterator`` would read.

    Args:
        grid: The grid of this rank; ``None`` without replicas.
        arrays: An array of the whole minibatch, or a tuple of arrays, or ``None``.

    Returns:
        The same with this replica's samples; an empty tuple if it has none.
    """
    if grid is None or arrays is None:
        return arrays
    several = isinstance(arrays, (tuple, list))
    n_samples = len(arrays[0] if several else arrays)
    shares = grid.shares or [1] * grid.n_replicas
    sizes = integer_shares(shares, n_samples, int(n_samples >= grid.n_replicas))
    start = sum(sizes[: grid.replica])
    end = start + sizes[grid.replica]
    if start == end:
        return ()
    return tuple(a[start:end] for a in arrays) if several else arrays[start:end]


def titles_in_world(grid: Grid, stage_ranks: Sequence[int]) -> dict[int, str]:
    """Returns names for the ranks of a grid's world, by rank.

    Args:
        grid: The grid.
        stage_ranks: Rank of each stage of a pipeline.
    """
    return {
        rank: f"replica {replica}, {_stages(stage_ranks, place)}"
        for rank in range(grid.world.size)
        for replica, place in [grid.place(rank)]
    }


def titles_in_pipeline(grid: Grid, stage_ranks: Sequence[int]) -> dict[int, str]:
    """Returns names for the ranks of this rank's pipeline, by rank."""
    replica = grid.replica
    return {
        rank: f"replica {replica}, {_stages(stage_ranks, rank)}; rank"
        f" {grid.rank_of(replica, rank)} of all"
        for rank in range(grid.n_pipeline)
    }


def _stages(stage_ranks: Sequence[int], rank: int) -> str:
    numbers = [str(stage) for stage, owner in enumerate(stage_ranks) if owner == rank]
    return f"stage{'s' * (len(numbers) > 1)} {' and '.join(numbers)}"
