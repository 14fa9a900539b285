"""The arguments of a pipeline, and the settings of a process, for a way to run."""

from __future__ import annotations

from typing import Any

import numpy as np

import chainer_kernels
from divisible.schedules import Costs, Schedule, create, list_schedule
from divisible.schedules.groups import group_weights
from divisible.schedules.stage_groups import group_stages
from tests.composition.cases import Way


def use_kernels(is_on: bool, products: str = "") -> None:
    """Turns kernels on or off, and sets the dtype of products."""
    if not is_on:
        if chainer_kernels.is_enabled():
            chainer_kernels.set_products("float32")
        chainer_kernels.disable()
        return
    chainer_kernels.enable()
    chainer_kernels.set_products(products or "float32")


def arguments_of(way: Way) -> dict[str, Any]:
    """Returns the schedule and the options of a pipeline, as its arguments."""
    options = dict(way.options)
    sizes = options.pop("stage_groups", None)
    if isinstance(options.get("recompute"), tuple):
        options["recompute"] = list(options["recompute"])
    if not sizes and not way.schedule.startswith("list"):
        return {"schedule": way.schedule, **options}
    schedule = schedule_of(way)
    if sizes:
        schedule = group_stages(schedule, list(sizes))
        # Groups of weight gradients are those of the schedule then.
        schedule = group_weights(schedule, options.pop("weight_groups", 1))
    return {"schedule": schedule, **options}


def schedule_of(way: Way) -> Schedule:
    """Returns the schedule of a way."""
    n_stages = len(way.stage_ranks)
    if not way.schedule.startswith("list"):
        return create(way.schedule, n_stages, way.n_microbatches, way.n_pipeline)
    random = np.random.RandomState(int(way.schedule.split()[1]))
    costs = Costs(
        forward=random.uniform(0.5, 2, n_stages).tolist(),
        backward_input=random.uniform(0.5, 2, n_stages).tolist(),
        backward_weight=random.uniform(0, 2, n_stages).tolist(),
        transfer=random.uniform(0, 1, n_stages - 1).tolist(),
    )
    return list_schedule(
        costs,
        way.n_microbatches,
        memory_limit=float(random.randint(1, 5)),
        stage_ranks=list(way.stage_ranks),
        split_backward=bool(random.randint(2)),
    )
