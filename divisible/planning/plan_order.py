"""The shortest order of a plan's actions, by a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from divisible.planning.interpolation import sort_profiles
from divisible.planning.plan import Plan
from divisible.planning.plan_simulation import modelled
from divisible.planning.profile import Profile
from divisible.planning.retained_arrays import FULL
from divisible.schedules.optimal import FoundSchedule, optimal_schedule
from divisible.schedules.timeline import Timeline


def shortest_order(
    plan: Plan,
    profile: Profile | Sequence[Profile],
    *,
    held: float | Sequence[float] | None = None,
    seconds: float = 30.0,
) -> tuple[FoundSchedule, Timeline]:
    """Searches the shortest schedule for the stages of a plan, on the same ranks.

    Args:
        plan: Plan with ``n_microbatches`` and ``schedule``, without recomputation,
            groups, disks or activations held in fewer bits.
        profile: The costs of the model's layers; several profiles at different sizes
            of microbatch are interpolated.
        held: Number of microbatches that a rank may hold at once, one for all ranks or
            one for each. By default as many as with the plan's schedule.
        seconds: Seconds for the solver.

    Returns:
        What `divisible.schedules.optimal_schedule` found, for links that carry any
        number of messages at a time; and the timeline of the schedule on the plan's
        links, without the exchange between replicas, with ``peak_memory``.

    Raises:
        ValueError: If the plan is not complete or for another model, or has a feature
            for which orders are not searched.

    Example:
        >>> from divisible.planning.layer_cost import LayerCost
        >>> profile = Profile([LayerCost(1.0, 1.0, 1.0)] * 4, n_samples=8)
        >>> plan = Plan([0, 2, 4], n_microbatches=8, schedule='1f1b')
        >>> found, timeline = shortest_order(plan, profile)
        >>> found.makespan, timeline.makespan  # 1F1B takes 6.75 s
        (6.5, 6.5)
    """
    for name, is_used in (
        ("recompute", plan.recompute != "never"),
        ("weight_groups", plan.weight_groups > 1),
        ("stage_groups", max(plan.stage_groups, default=1) > 1),
        ("hold_in", "disk" in plan.hold_in),
        ("hold_dtype", plan.hold_dtype != FULL),
    ):
        if is_used:
            raise ValueError(
                f"the plan has {name}={getattr(plan, name)!r}, for which no order is"
                f" searched: make a plan without it"
            )
    profiles = sort_profiles([profile] if isinstance(profile, Profile) else profile)
    _, _, model = modelled(plan, profiles)
    if held is None:
        held = model.schedule.validate().held
    found = optimal_schedule(
        model.costs(plan.cuts),
        plan.n_microbatches,
        held,
        model.schedule.stage_ranks,
        seconds,
    )
    model = replace(model, schedule=found.schedule)
    timeline = model.simulate(plan.cuts)
    timeline.peak_memory = model.rank_bytes(plan.cuts)
    return found, timeline
