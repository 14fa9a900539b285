"""Combines a plan with the arguments that are given besides.

::

    plan      cuts, 4 microbatches, 1f1b, on disk on rank 1 ---.
                                                                +---> plan in force
    given     8 microbatches ----------------------------------'      and a warning

Given arguments take precedence. A plan predicts its own time and memory, so a plan in
force that differs from it has no predictions.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from divisible.communication.narrowing import pair_of
from divisible.planning.message_plan import as_plans
from divisible.planning.network import Network
from divisible.planning.plan import Plan
from divisible.planning.units import count
from divisible.schedules.actions import ScheduleError
from divisible.schedules.automatic import AUTO
from divisible.schedules.catalogue import CATALOGUE, Placement, create
from divisible.schedules.schedule import Schedule
from divisible.schedules.stage_groups import stage_group_sizes
from pipeline.start.recomputed_runs import split_recompute

#: Fields with predictions of a plan, which are wrong for other arguments.
PREDICTIONS = ("stages", "step_seconds", "bubble", "exchange", "scatter", "bound")
#: Schedules for plans without one.
_OF_ONE, _OF_SEVERAL = "1f1b", "interleaved"


class Given(NamedTuple):
    """Arguments that a plan decides if they are ``None``.

    Attributes:
        n_microbatches: Number of microbatches.
        schedule: Name of the schedule, or the schedule itself.
        recompute: Microbatches that are recomputed, or layers.
        fuse: Chains of layers that run as one function, or the way to find them.
        weight_groups: Number of microbatches in a group of weight gradients, or the way
            to find it.
        overlap_minibatches: Whether minibatches overlap; ``'auto'`` for where they can.
        hold_dtype: Dtype in which activations wait for their backward.
        message_dtype: Dtype of messages between all stages, or two of them, for
            activations and gradients.
    """

    n_microbatches: int | None = None
    schedule: str | Schedule | None = None
    recompute: Any = None
    fuse: Any = None
    weight_groups: int | str | None = None
    overlap_minibatches: bool | str = AUTO
    hold_dtype: str | None = None
    message_dtype: Any = None


class InForce(NamedTuple):
    """A plan, in which given arguments have replaced its own.

    Attributes:
        plan: The plan in force.
        schedule: Name of the schedule, or the schedule itself.
        stage_ranks: Rank of each stage, within its pipeline.
        fuse: Argument ``fuse`` of a pipeline.
        weight_groups: Argument ``weight_groups`` of a pipeline.
        overlap_minibatches: Argument ``overlap_minibatches`` of a pipeline.
        changes: Texts about the differences from the original plan.
    """

    plan: Plan
    schedule: str | Schedule
    stage_ranks: tuple[int, ...]
    fuse: Any = None
    weight_groups: int | str = 1
    overlap_minibatches: bool | str = AUTO
    changes: tuple[str, ...] = ()

    @property
    def warning(self) -> str:
        """A warning if the plan in force differs from the original; else empty."""
        if not self.changes:
            return ""
        return (
            f"the plan is not run as it is: {', '.join(self.changes)}. The time and"
            f" memory that it predicts do not hold"
        )

    def stages_of(self, rank: int) -> list[tuple[int, int]]:
        """Returns the ranges of layers of a rank's stages, in their order."""
        numbers = (s for s, owner in enumerate(self.stage_ranks) if owner == rank)
        return [self.plan.range(number) for number in numbers]


def put_together(
    plan: Plan, given: Given, held: Sequence[str | None] | None = None
) -> InForce:
    """Returns the plan in force, from a plan and the arguments given besides.

    Args:
        plan: The plan.
        given: Arguments that are equal on all ranks.
        held: The ``hold_in`` that is given on each rank of a pipeline.

    Raises:
        ValueError: If the arguments do not fit the plan.

    Example:
        >>> plan = Plan([0, 3, 5], 4, '1f1b')
        >>> found = put_together(plan, Given(n_microbatches=8))
        >>> found.plan.n_microbatches, found.schedule, found.stages_of(1)
        (8, '1f1b', [(3, 5)])
        >>> found.changes
        ('n_microbatches is 8 (4 in the plan)',)
    """
    schedule = given.schedule or plan.schedule
    if schedule is None:
        schedule = _OF_ONE if plan.stages_per_rank == 1 else _OF_SEVERAL
    n_microbatches = given.n_microbatches
    if n_microbatches is None and isinstance(schedule, Schedule):
        n_microbatches = schedule.n_microbatches
    if n_microbatches is None:
        n_microbatches = plan.n_microbatches
    if n_microbatches is None:
        raise ValueError(
            f"n_microbatches is missing, and the plan {plan.cuts} does not say it: give"
            f" n_microbatches, or a plan that does"
        )
    stage_ranks = _placed(plan, schedule, n_microbatches)
    n_ranks = plan.n_stages // plan.stages_per_rank
    held = held or [None] * n_ranks
    fuse, fusion = _fused(plan, given.fuse)
    weight_groups = given.weight_groups or plan.weight_groups
    when, runs = plan.recompute, plan.recomputed
    if given.recompute is not None:
        when, runs = split_recompute(given.recompute, plan.n_layers)
    wanted = {
        "n_microbatches": n_microbatches,
        "schedule": schedule if isinstance(schedule, str) else schedule.name,
        "recompute": when,
        "recomputed": runs,
        "hold_in": tuple(there or says for there, says in zip(held, plan.hold_in)),
        "hold_dtype": given.hold_dtype or plan.hold_dtype,
        "weight_groups": 1 if weight_groups == AUTO else weight_groups,
        "stage_groups": _stage_groups(plan, schedule),
    }
    messages = plan.messages
    if given.message_dtype is not None:
        messages = as_plans([pair_of(given.message_dtype)] * (plan.n_stages - 1))
    changes = tuple(
        f"{name} is {value!r} ({says!r} in the plan)"
        for name, value in wanted.items()
        if (says := getattr(plan, name)) not in (None, value)
    )
    if fusion != plan.fusion and plan.fusion:
        changes += (f"fuse is {given.fuse!r} ({plan.fusion!r} in the plan)",)
    overlap, planned = given.overlap_minibatches, _planned_overlap(plan)
    if overlap == AUTO and planned is False:
        overlap = False
    elif overlap is False and planned:
        changes += ("overlap_minibatches is False (True in the plan)",)
    if messages != plan.messages and plan.messages:
        says = "; ".join(map(str, plan.messages))
        changes += (f"message_dtype is {given.message_dtype!r} ({says} in the plan)",)
    predicted = dict.fromkeys(PREDICTIONS) if changes else {}
    in_force = dataclasses.replace(
        plan, **wanted, fusion=fusion, messages=messages, **predicted
    )
    return InForce(
        in_force, schedule, stage_ranks, fuse, weight_groups, overlap, changes
    )


def _planned_overlap(plan: Plan) -> bool | None:
    """Returns whether minibatches overlap in a plan's predictions, if it says so."""
    return None if plan.conditions is None else plan.conditions.overlap_minibatches


def _fused(plan: Plan, fuse: Any) -> tuple[Any, Any]:
    """Returns a pipeline's ``fuse``, and the chains that are known already."""
    if fuse is None:
        return plan.fusion or "none", plan.fusion
    return fuse, () if isinstance(fuse, str) else fuse


def _stage_groups(plan: Plan, schedule: str | Schedule) -> Sequence[int]:
    """Returns the groups of a plan's stages; none where the schedule decides them."""
    if isinstance(schedule, Schedule):
        sizes = stage_group_sizes(schedule)
        return sizes if max(sizes) > 1 else ()
    return () if schedule == AUTO else plan.stage_groups


def _placed(
    plan: Plan, schedule: str | Schedule, n_microbatches: int
) -> tuple[int, ...]:
    """Returns the rank of each stage of a plan, as a schedule needs it.

    Raises:
        ValueError: If the schedule needs other stages than the plan has.
    """
    n_ranks = plan.n_stages // plan.stages_per_rank
    if schedule == AUTO:
        entry = CATALOGUE.get(plan.schedule)
        placement = Placement.LOOP if entry is None else entry.placement
        return placement.ranks(n_ranks, plan.n_stages)
    if isinstance(schedule, Schedule):
        has = schedule.n_stages, schedule.n_ranks
        if has != (plan.n_stages, n_ranks):
            raise ValueError(
                f"the schedule {schedule.name!r} has {has[0]} stages on {has[1]} ranks,"
                f" but the plan {plan.cuts} has {plan.n_stages} on {n_ranks}: leave"
                f" schedule out, or make a plan for it"
            )
        return tuple(schedule.stage_ranks)
    try:
        made = create(schedule, plan.n_stages, n_microbatches, n_ranks)
    except ScheduleError as error:
        raise ValueError(
            f"the plan {plan.cuts} has {count(plan.stages_per_rank, 'stage')} on each"
            f" of {count(n_ranks, 'rank')}, and does not go with schedule={schedule!r}:"
            f" {error}. Leave schedule out, or make a plan for it"
        ) from None
    return tuple(made.stage_ranks)


def plan_of_stages(
    cuts: Sequence[int], stage_ranks: Sequence[int], **fields: Any
) -> Plan | None:
    """Returns the plan that describes stages divided without one.

    Args:
        cuts: Cuts of the model.
        stage_ranks: Rank of each stage, within its pipeline.
        **fields: Other known fields of the plan.

    Returns:
        Plan: The plan; ``None`` if ranks have unequally many stages, as in no plan.

    Example:
        >>> plan_of_stages([0, 1, 2, 3, 4], [0, 1, 1, 0], schedule="zb_v").n_ranks
        2
    """
    numbers = {*Counter(stage_ranks).values()}
    if len(numbers) > 1:
        return None
    return Plan(cuts, stages_per_rank=numbers.pop(), **fields)


def with_new_cuts(plan: Plan, cuts: Sequence[int]) -> Plan:
    """Returns a plan with other cuts, and without its predictions."""
    if list(cuts) == list(plan.cuts):
        return plan
    return dataclasses.replace(plan, cuts=cuts, **dict.fromkeys(PREDICTIONS))


def planned_network(plan: Plan | None) -> Network | None:
    """Returns the links of a pipeline that a plan was made for; ``None`` if unknown."""
    if plan is None or plan.conditions is None:
        return None
    links = plan.conditions.machine.network.links(plan.n_ranks)
    return Network(*links.slowest_replica(plan.replicas))
