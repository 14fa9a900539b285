"""What users hand to a pipeline, checked on each rank and compared among all."""

from __future__ import annotations

import math
import operator
import os
import socket
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import chainer
import numpy as np

from divisible import Divisible, schedules
from divisible.backward.weight_gradients import blas_threads
from divisible.communication.collectives import all_gather
from divisible.communication.errors import DisagreementError
from divisible.dtypes import floating_dtypes
from divisible.schedules.automatic import AUTO, first_schedule
from divisible.schedules.schedule import Schedule


def check_stages(stage: Divisible | Sequence[Divisible]) -> list[Divisible]:
    """Returns a rank's stages in the order of the model."""
    several = isinstance(stage, (list, tuple))
    mine = list(stage) if several else [stage]
    for part in mine:
        if not isinstance(part, Divisible):
            raise TypeError(
                f"stage must be a Divisible or a list of them, not"
                f" {type(part).__name__}"
            )
    if not mine:
        raise ValueError("stage is an empty list: each rank needs a stage")
    for part in mine:
        part.check_cuttable()
        _refuse_states(part)
    return sorted(mine, key=lambda part: part.layer_range)


def _refuse_states(part: Divisible) -> None:
    """Refuses layers that keep a state from one call to the next, as L.LSTM does."""
    for position, layer in enumerate(part, start=part.layer_range[0]):
        if _keeps_state(layer):
            raise TypeError(
                f"layer {position}, {type(layer).__name__}, has a method reset_state,"
                f" so it keeps a state from one call to the next. Here every microbatch"
                f" is a call, with other samples. Put it into a layer that takes whole"
                f" sequences and resets it first, without a method of that name; or use"
                f" L.NStepLSTM and the like"
            )


def _keeps_state(layer: Any) -> bool:
    if isinstance(layer, (chainer.Sequential, Divisible)):
        return any(map(_keeps_state, layer))
    return hasattr(layer, "reset_state")


def check_transport(
    transport: str, wire_dtype: Any, device: chainer.backend.Device
) -> None:
    """Refuses transports and wire dtypes that do not exist or do not go together."""
    if transport not in ("mpi", "chainermn"):
        raise ValueError(f"transport must be 'mpi' or 'chainermn', not {transport!r}")
    if transport == "chainermn" and device.xp is not np:
        raise ValueError(
            f"the stage is on {device}, but the transport 'chainermn' is for host"
            f" memory only: use 'mpi'"
        )
    if wire_dtype is None:
        return
    if transport != "mpi":
        raise ValueError("wire_dtype needs the transport 'mpi'")
    if np.dtype(wire_dtype).kind != "f":
        raise ValueError(f"wire_dtype must be a floating-point type, not {wire_dtype}")


def check_seed(seed: int) -> int:
    """Returns a seed that random numbers can be made from."""
    number = operator.index(seed)
    if not 0 <= number < 2**63:
        raise ValueError(f"seed must be from 0 to 2**63 - 1, not {number}")
    return number


def make_schedule(
    schedule: str | Schedule, stage_ranks: Sequence[int], n_microbatches: int | None
) -> Schedule:
    """Returns the schedule asked for, proved to be able to run.

    Args:
        schedule (str or Schedule): Its name, or itself.
        stage_ranks: For each stage the rank that holds it.
        n_microbatches (int or None): Needed with a name.
    """
    if isinstance(schedule, Schedule):
        if n_microbatches not in (None, schedule.n_microbatches):
            raise ValueError(
                f"n_microbatches is {n_microbatches}, but the schedule has"
                f" {schedule.n_microbatches}"
            )
        schedule.validate()
        if len(schedule) == len(schedule.forward_only()):
            raise ValueError(f"the schedule {schedule.name!r} has no backward")
        return schedule
    if n_microbatches is None:
        raise ValueError("n_microbatches is missing")
    n_ranks = len(set(stage_ranks))
    n_microbatches = operator.index(n_microbatches)
    if schedule == AUTO:
        return first_schedule(stage_ranks, n_microbatches)
    return schedules.create(schedule, len(stage_ranks), n_microbatches, n_ranks)


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


def as_arrays(name: str, value: Any, rank: int, reader: str) -> tuple:
    """Returns an ``x`` or ``t`` as a tuple of arrays with equally many samples.

    Args:
        name (str): What to call it in messages.
        value: What the user gave.
        rank (int): This rank.
        reader (str): Why this rank reads it.
    """
    if value is None:
        raise TypeError(
            f"{name} is None on rank {rank}, which has {reader} and reads it"
        )
    arrays = value if isinstance(value, (tuple, list)) else (value,)
    if not arrays:
        raise ValueError(
            f"{name} is an empty {type(value).__name__} on rank {rank}, which has"
            f" {reader} and reads it: it needs at least one array"
        )
    for array in arrays:
        if not isinstance(array, chainer.get_array_types()):
            raise TypeError(
                f"{name} must be an array or a tuple of arrays, not"
                f" {type(array).__name__}"
            )
        if array.ndim == 0 or len(array) == 0:
            raise ValueError(f"{name} has no samples: its shape is {array.shape}")
        if len(array) != len(arrays[0]):
            raise ValueError(
                f"the arrays of {name} have {len(arrays[0])} and {len(array)} samples"
            )
    return tuple(arrays)


def check_losses(lossfun: Any, accfun: Any) -> None:
    """Refuses what cannot be called; there need not be an ``accfun``."""
    for name, function in (("lossfun", lossfun), ("accfun", accfun)):
        if not (callable(function) or (name == "accfun" and function is None)):
            raise TypeError(f"{name} must be a function or a link, not {function!r}")


def check_loss_scale(loss_scale: Any) -> None:
    """Refuses a loss scale that is no positive number, or has no value."""
    if loss_scale is None:
        return
    try:
        value = float(loss_scale)
    except (TypeError, ValueError):
        raise TypeError(
            f"loss_scale must be a number or an optimizer's loss_scale, not"
            f" {loss_scale!r}"
        ) from None
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"loss_scale must be positive and finite, not {value}")


def warn_of_float16(dtypes: set[np.dtype], loss_scale: Any, rank: int) -> None:
    """Warns if float16 parameters would be trained without a loss scale."""
    if np.dtype(np.float16) in dtypes and loss_scale is None and rank == 0:
        warnings.warn(
            "the model has float16 parameters, but the pipeline no loss_scale: small"
            " gradients become zero, and small updates are lost. Train with optimizer ="
            " mixed_precision.MixedPrecision(optimizer, comm=comm) and Pipeline(...,"
            " loss_scale=optimizer.loss_scale). With loss_scale=1 this is silent",
            stacklevel=3,
        )


def split(arrays: Sequence[Any], n_microbatches: int) -> list[tuple]:
    """Cuts along the first axis; the first microbatches get one sample more."""
    n = len(arrays[0])
    each, extra = divmod(n, n_microbatches)
    ends = [i * each + min(i, extra) for i in range(n_microbatches + 1)]
    return [
        tuple(array[start:end] for array in arrays)
        for start, end in zip(ends, ends[1:])
    ]
