"""How a model lies on the ranks, which is compared when a pipeline is made."""

from __future__ import annotations

import os
import socket
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np
from mpi4py import MPI

from chainer_kernels.gemm import blas_threads
from divisible import Divisible
from divisible.communication.collectives import all_gather
from divisible.communication.errors import DisagreementError
from divisible.dtypes import floating_dtypes
from divisible.schedules.actions import Route
from divisible.schedules.schedule import Schedule
from divisible.ties import SharedState, Tie
from pipeline.tie_exchange import SharedParameter


class Layout(NamedTuple):
    """How a model lies on the ranks.

    Attributes:
        stage_ranks: For each stage of the pipeline the rank that holds it.
        routes: The skip connections that lead from one stage to another.
        shared: The parameters of which several stages have a copy.
    """

    stage_ranks: list[int]
    routes: list[Route]
    shared: list[SharedParameter]


def agree_on_stages(
    comm: MPI.Comm, mine: Sequence[Divisible], timeout: float
) -> Layout:
    """Finds the order of all ranks' stages, and what connects them.

    Args:
        comm (mpi4py.MPI.Comm): Of all ranks of the pipeline.
        mine: This rank's stages.
        timeout (float): Seconds to wait for the other ranks.

    Returns:
        The layout, the same on every rank.

    Raises:
        DisagreementError: On every rank, if they do not make up one model.
    """
    model, skips, ties = mine[0].model_layers, mine[0].skips, mine[0].ties
    states = mine[0].shared_states
    ranges = [part.layer_range for part in mine]
    unsized = [
        path
        for part in mine
        for path, param in part.namedparams()
        if not param.is_initialized
    ]
    gathered = all_gather(comm, (ranges, unsized, model, skips, ties), timeout)
    for rank, (_, _, layers, *connections) in enumerate(gathered):
        if layers != gathered[0][2]:
            raise DisagreementError(_first_difference(gathered[0][2], layers, rank))
        for name, here, there in zip(("skips", "ties"), gathered[0][3:], connections):
            if here != there:
                raise DisagreementError(
                    f"rank 0 and rank {rank} built different models, with the {name}"
                    f" {here} and {there}"
                )
    parts = sorted(
        (layer_range, rank)
        for rank, (ranges, *_) in enumerate(gathered)
        for layer_range in ranges
    )
    position = 0
    for (start, end), rank in parts:
        if start != position:
            raise DisagreementError(
                f"rank {rank} has the layers {start} to {end - 1}, but layer"
                f" {position} comes next; the ranks have {_ranges(parts)}"
            )
        position = end
    if position != len(model):
        raise DisagreementError(
            f"no rank has the layers from {position} to {len(model) - 1}; the ranks"
            f" have {_ranges(parts)}"
        )
    starts = [start for (start, _), _ in parts]

    def stage_of(position: int) -> int:
        return bisect_right(starts, position) - 1

    _check_states(states, stage_of)
    routes = [Route(s.name, stage_of(s.stash), stage_of(s.pop)) for s in skips]
    unsized = {path for _, paths, *_ in gathered for path in paths}
    return Layout(
        [rank for _, rank in parts],
        [route for route in routes if route.source != route.target],
        _find_shared(ties, stage_of, unsized),
    )


def agree_on_loss(
    comm: MPI.Comm,
    last: Divisible | None,
    parameters: Iterable[chainer.Parameter],
    timeout: float,
) -> None:
    """Makes sure that the loss trains nothing that another stage's optimizer does.

    Args:
        comm (mpi4py.MPI.Comm): Of all ranks of the pipeline.
        last (Divisible or None): The last stage, on its rank.
        parameters: Those of the loss.
        timeout (float): Seconds to wait for the other ranks.

    Raises:
        DisagreementError: On every rank, if it does.
    """
    paths = [] if last is None else map(last.path_elsewhere, parameters)
    for found in all_gather(comm, [path for path in paths if path], timeout):
        if found:
            raise DisagreementError(
                f"the loss uses {found[0]}, a parameter of another stage than the last,"
                f" whose optimizer will not see the gradient: tie it to a parameter of"
                f" a layer in the last stage, or cut so that both are there"
            )


def _check_states(
    states: Sequence[SharedState], stage_of: Callable[[int], int]
) -> None:
    for path, positions, reason in states:
        stages = sorted({stage_of(position) for position in positions})
        if len(stages) > 1:
            first, *_, last = positions
            raise DisagreementError(
                f"the layers {first} and {last} have {path} in common, but are in the"
                f" stages {', '.join(map(str, stages))}, which cannot share it:"
                f" {reason}. Cut so that both layers are in one stage"
            )


def _find_shared(
    ties: Sequence[Tie], stage_of: Callable[[int], int], unsized: Set[str]
) -> list[SharedParameter]:
    shared = []
    for path, positions in ties:
        stages = tuple(sorted({stage_of(position) for position in positions}))
        if len(stages) == 1:
            continue
        if path in unsized:
            raise DisagreementError(
                f"{path} is shared by the stages {', '.join(map(str, stages))}, but its"
                f" shape is not known before the first call: give its layer all sizes"
            )
        shared.append(SharedParameter(path, stages))
    return shared


def _ranges(parts: Sequence[tuple]) -> str:
    return ", ".join(
        f"{start} to {end - 1} on rank {rank}" for (start, end), rank in parts
    )


def _first_difference(a: Sequence[str], b: Sequence[str], rank: int) -> str:
    if len(a) != len(b):
        return f"rank 0 divided a model of {len(a)} layers, rank {rank} one of {len(b)}"
    i = next(i for i in range(len(a)) if a[i] != b[i])
    return (
        f"rank 0 and rank {rank} built different models: layer {i} is {a[i]} on rank 0"
        f" and {b[i]} on rank {rank}"
    )


def check_placement(schedule: Schedule, stage_ranks: Sequence[int]) -> None:
    """Refuses a schedule that wants the stages on other ranks than they are on."""
    if tuple(schedule.stage_ranks) != tuple(stage_ranks):
        raise DisagreementError(
            f"the schedule {schedule.name!r} wants the stages on the ranks"
            f" {list(schedule.stage_ranks)}, but they are on the ranks"
            f" {list(stage_ranks)}"
        )


def agree_on_settings(comm: Any, settings: Mapping[str, str], timeout: float) -> None:
    """Compares arguments that must be equal on all ranks.

    Args:
        comm (mpi4py.MPI.Comm): Of all ranks of the pipeline.
        settings: Texts by the argument's name.
        timeout (float): Seconds to wait for the other ranks.

    Raises:
        DisagreementError: On every rank, if one differs.
    """
    gathered = all_gather(comm, dict(settings), timeout)
    for name in settings:
        for rank, theirs in enumerate(gathered):
            if theirs[name] != gathered[0][name]:
                raise DisagreementError(
                    f"{name} differs between rank 0 and rank {rank}:\n"
                    f"{gathered[0][name]}\n{theirs[name]}"
                )


def parameter_dtypes(
    comm: Any, mine: Sequence[Divisible], timeout: float
) -> set[np.dtype]:
    """Returns the floating-point types of all ranks' parameters."""
    dtypes = {dtype.str for part in mine for dtype in floating_dtypes(part)}
    return {
        np.dtype(text) for texts in all_gather(comm, dtypes, timeout) for text in texts
    }


def _n_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    # Not on macOS.
    return os.cpu_count() or 1


def warn_of_many_threads(comm: Any, timeout: float) -> None:
    """Warns if the ranks on this host have more BLAS threads than there are cores.

    They spin while they wait for each other, which makes a step many times slower.
    """
    hosts = all_gather(comm, socket.gethostname(), timeout)
    mine = [rank for rank, host in enumerate(hosts) if host == hosts[comm.rank]]
    n_threads = blas_threads()
    n_cores = _n_cores()
    if n_threads > 1 and len(mine) * n_threads > n_cores and comm.rank == mine[0]:
        warnings.warn(
            f"{len(mine)} ranks on {hosts[comm.rank]} with {n_threads} BLAS threads"
            f" each share {n_cores} cores and slow each other down: set the environment"
            f" variable OMP_NUM_THREADS={max(1, n_cores // len(mine))}",
            stacklevel=3,
        )
