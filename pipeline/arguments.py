"""What users hand to a pipeline, checked on each rank and compared among all."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np

from divisible import Divisible
from divisible.schedules.automatic import AUTO, first_schedule
from divisible.schedules.catalogue import create
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
    return create(schedule, len(stage_ranks), n_microbatches, n_ranks)


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
