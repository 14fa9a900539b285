"""Divides an undivided model into the stages of a rank.

::

    every rank    model, perhaps deferred      positions 0 1 2 3 4 5 6
    rank 0        stages of the plan                     0 1 2
    rank 1                                                     3 4 5 6

A model with all of its layers is undivided. The result of
:meth:`~divisible.Divisible.divide` with only some of them is a stage.
"""

from __future__ import annotations

import math
import os
from typing import Any

from divisible import Divisible, Plan
from divisible.deferred.search import is_deferred
from divisible.schedules.automatic import AUTO
from divisible.schedules.catalogue import CATALOGUE
from divisible.schedules.schedule import Schedule
from divisible.streaming import stream
from pipeline.start.plans import InForce


def is_undivided(model: Any) -> bool:
    """Returns whether an object is a model with all of its layers.

    Example:
        >>> model = Divisible(abs, abs)
        >>> is_undivided(model), is_undivided(model.divide(0, 1))
        (True, False)
    """
    if not isinstance(model, Divisible):
        return False
    return model.layer_range == (0, len(model.model_layers))


def check_undivided(model: Any) -> None:
    """Refuses a model that a plan cannot cut.

    Raises:
        TypeError: If it is not a Divisible.
        ValueError: If it has only some layers of a model.
    """
    if isinstance(model, (list, tuple)):
        raise TypeError(
            "the first argument is a list of stages, but a plan is for the undivided"
            " model: give the model, which the pipeline divides; or the stages, and"
            " what the plan says by other arguments"
        )
    if not isinstance(model, Divisible):
        raise TypeError(f"model must be a Divisible, not {type(model).__name__}")
    if not is_undivided(model):
        start, end = model.layer_range
        raise ValueError(
            f"the first argument is a stage with the layers {start} to {end - 1}, but a"
            f" plan is for the undivided model: give the model, which the pipeline"
            f" divides"
        )


def are_deferred(model: Divisible) -> bool:
    """Returns whether layers are still to be made."""
    return any(map(is_deferred, model))


def equal_stages(model: Divisible, schedule: str | Schedule, n_ranks: int) -> InForce:
    """Returns the plan of stages of equally many layers.

    Args:
        model: The undivided model.
        schedule: Name of the schedule, or the schedule itself.
        n_ranks: Number of ranks in a pipeline.

    Raises:
        ValueError: If there are too few layers.
    """
    if isinstance(schedule, Schedule):
        stage_ranks = tuple(schedule.stage_ranks)
    elif schedule == AUTO or schedule not in CATALOGUE:
        # Unknown names are refused later, with a list of the known ones.
        stage_ranks = tuple(range(n_ranks))
    else:
        entry = CATALOGUE[schedule]
        stage_ranks = entry.placement.ranks(n_ranks, entry.stages_per_rank * n_ranks)
    plan = Plan.uniform(len(model), len(stage_ranks))
    return InForce(plan, schedule, stage_ranks)


def divided(
    model: Divisible, found: InForce, rank: int, directory: str | os.PathLike | None
) -> list[Divisible]:
    """Returns a rank's stages of an undivided model; other layers are not made.

    Args:
        model: The undivided model. Layers that the plan streams are replaced in it.
        found: The plan in force.
        rank: Number of the rank in its pipeline.
        directory: Where streamed layers have their files.

    Raises:
        MemoryLimitError, StoreError: If layers cannot be streamed.
    """
    plan = found.plan
    if plan.streamed:
        conditions = plan.conditions
        is_limited = conditions is not None and conditions.machine.memory is not None
        memory = None if is_limited else math.inf
        stream(model, memory=memory, directory=directory, plan=plan, show=False)
    return [model.divide(*layers) for layers in found.stages_of(rank)]


def is_as_it_is(model: Divisible, found: InForce) -> bool:
    """Returns whether the model itself is the only stage, as a serial script has it."""
    return found.plan.n_stages == 1 and not are_deferred(model)
