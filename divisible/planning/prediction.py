"""Predicts how a plan runs: from the layers' costs to a timeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from divisible.minibatch import microbatch_sizes
from divisible.planning.interpolation import interpolate, sort_profiles
from divisible.planning.machine import Network, PerRank, slowest_replica, spread_speeds
from divisible.planning.memory import rank_bytes, stage_costs
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile, check_layers
from divisible.schedules.catalogue import create
from divisible.schedules.costs import Costs
from divisible.schedules.recomputation import recompute
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import simulate
from divisible.schedules.timeline import Timeline


def predict(
    plan: Plan,
    profile: Profile | Sequence[Profile],
    *,
    batch: int | None = None,
    network: Network | None = None,
    speeds: PerRank | None = None,
) -> Timeline:
    """Simulates one minibatch of a plan: forward and backward, without the update.

    Args:
        plan: With ``n_microbatches`` and ``schedule``.
        profile: The costs of the model's layers; several profiles at different sizes
            of microbatch are interpolated.
        batch: Samples of the minibatch, of which each replica takes its share; those
            of the largest profile by default.
        network: The links between the ranks, those of all replicas; infinitely fast by
            default.
        speeds: Of the ranks, those of all replicas, relative to that of the profile.

    Returns:
        Timeline: Of one replica. For each place in the pipeline it is reckoned with the
        slowest rank and link that a replica has there, because in the end all wait for
        each other. ``peak_memory`` is all that a rank holds: parameters, gradients,
        optimizer state, activations, workspace.

    Raises:
        ValueError: If an argument is out of range, or the plan is for another model.

    Example:
        >>> from divisible.planning.profile import LayerCost
        >>> profile = Profile([LayerCost(1.0, 1.0, 1.0)] * 4, n_samples=8)
        >>> plan = Plan([0, 2, 4], n_microbatches=8, schedule='1f1b')
        >>> predict(plan, profile).makespan     # (m + d - 1) (F + B) of a microbatch
        6.75
    """
    profiles = sort_profiles([profile] if isinstance(profile, Profile) else profile)
    check_plan(plan, profiles[0])
    batch = profiles[-1].n_samples if batch is None else batch
    sizes = microbatch_sizes(-(-batch // plan.replicas), plan.n_microbatches)
    schedule = recompute(
        create(
            plan.schedule,
            plan.n_stages,
            plan.n_microbatches,
            plan.n_stages // plan.stages_per_rank,
        ),
        plan.checkpoint,
    )
    network, speeds = slowest_replica(
        Network() if network is None else network,
        spread_speeds(speeds, plan.replicas * schedule.n_ranks),
        plan.replicas,
    )
    sized = {size: interpolate(profiles, size) for size in set(sizes)}
    each = [sized[size] for size in sizes]
    costs = stage_costs(plan.cuts, schedule, each, network, speeds)
    timeline = run(schedule, costs, network)
    timeline.peak_memory = rank_bytes(plan.cuts, schedule, sized[max(sizes)])
    return timeline


def run(schedule: Schedule, costs: Costs, network: Network) -> Timeline:
    """Simulates a schedule on links that carry one message at a time."""
    if not network.overlap:
        return simulate(schedule, costs, overlap=False)
    links = "serial" if np.any(costs.transfer) else "parallel"
    return simulate(schedule, costs, links=links)


def check_plan(plan: Plan, profile: Profile) -> None:
    """Refuses a plan that is not complete, or for another model than the profile's.

    Raises:
        ValueError: With what is missing or differs.
    """
    for name in ("n_microbatches", "schedule"):
        if getattr(plan, name) is None:
            raise ValueError(
                f"the plan {plan.cuts} does not say {name}: make it with"
                f" Plan(cuts, n_microbatches=..., schedule=...) or best_plan"
            )
    names = tuple(layer.name for layer in profile.layers)
    if plan.n_layers != len(profile):
        raise ValueError(
            f"the plan {plan.cuts} is for a model of {plan.n_layers} layers, but the"
            f" profile is of one of {len(profile)}"
        )
    check_layers("the plan", plan.layers or names, "the profile", names)
