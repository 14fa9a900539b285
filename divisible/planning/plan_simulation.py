"""The simulation of a plan: from the layers' costs to the timeline of a minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from divisible.planning.coding import CodingRate
from divisible.planning.conditions import Conditions
from divisible.planning.cost_model import CostModel
from divisible.planning.cut_plan import UncutPlan
from divisible.planning.gradient_exchange import Spans, Wire
from divisible.planning.interpolation import sort_profiles
from divisible.planning.layer_choice import recomputing
from divisible.planning.machine import Machine
from divisible.planning.messages import Narrowing
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile, check_layers
from divisible.planning.shares import integer_shares
from divisible.planning.units import count
from divisible.planning.workload import Workload
from divisible.schedules.catalogue import CATALOGUE, placed
from divisible.schedules.groups import group_weights
from divisible.schedules.recomputation import recompute
from divisible.schedules.schedule import Schedule
from divisible.schedules.steady_state import steady_seconds
from divisible.schedules.timeline import Timeline


def simulate_plan(
    plan: Plan,
    profile: Profile | Sequence[Profile],
    *,
    batch: int | None = None,
    machine: Machine | None = None,
    coding: CodingRate | None = None,
    n_minibatches: int = 1,
    schedule: Schedule | None = None,
) -> Timeline:
    """Simulates minibatches of a plan: forward and backward, without the update.

    Args:
        plan: Plan with ``n_microbatches`` and ``schedule``.
        profile: The costs of the model's layers; several profiles at different sizes
            of microbatch are interpolated.
        batch: Samples of the minibatch, of which each replica takes its share, equal
            ones if the plan has none. By default the samples in the plan's conditions,
            or those of the largest profile.
        machine: The ranks of all replicas, with their links, speeds and disks; more
            ranks than the plan needs are left out. By default the machine in the plan's
            conditions, or one of infinitely fast links.
        coding: Speed of coding gradients for the wire. By default the rate in the
            plan's conditions, or the profile's, or a rate measured here.
        n_minibatches: Number of minibatches, which follow each other without a wait
            of all ranks.
        schedule: A schedule of the same stages to simulate instead of the plan's, with
            a number of microbatches of its own.

    Returns:
        Timeline: Timeline of one replica. At each place in the pipeline it has the rank
        and link of the replica that is slowest there, with the samples of that replica.
        All replicas wait for each other in the end. With several replicas it includes
        the exchange of their gradients. ``peak_memory`` has all bytes of a rank:
        parameters, gradients, optimizer state, activations, workspace and buffers of
        the exchange. It also has prepared weights, as far as there is room.

    Raises:
        ValueError: If an argument is out of range, the plan is for another model, or
            it has replicas and there are several minibatches.

    Example:
        >>> from divisible.planning.layer_cost import LayerCost
        >>> profile = Profile([LayerCost(1.0, 1.0, 1.0)] * 4, n_samples=8)
        >>> plan = Plan([0, 2, 4], n_microbatches=8, schedule='1f1b')
        >>> simulate_plan(plan, profile).makespan  # (m + d - 1) (F + B) of a microbatch
        6.75
    """
    profiles = sort_profiles([profile] if isinstance(profile, Profile) else profile)
    if schedule is not None:
        plan = _like(plan, schedule)
    workload, uncut, model = modelled(plan, profiles, batch, machine, coding)
    if schedule is not None:
        own = recompute(schedule, plan.recompute)
        model = replace(model, schedule=group_weights(own, plan.weight_groups))
    if model.exchange is not None and n_minibatches != 1:
        raise ValueError(
            f"n_minibatches is {n_minibatches}, but the plan has {plan.replicas}"
            f" replicas, which wait for each other's gradients: simulate one minibatch"
        )
    timeline = model.simulate(plan.cuts, n_minibatches)
    spans = model.spans(plan.cuts, timeline)
    if spans is not None:
        timeline = _with_exchange(timeline, model.schedule, spans)
        timeline.find_bound = partial(model.least_step, plan.cuts)
    timeline.name = plan.title if schedule is None else schedule.name
    if n_minibatches > 1:
        timeline.name += f", {n_minibatches} minibatches"
    prepared = model.prepared_bytes(plan.cuts, workload.memory(uncut))
    timeline.peak_memory = model.rank_bytes(plan.cuts) + prepared
    return timeline


def _like(plan: Plan, schedule: Schedule) -> Plan:
    """Returns a plan whose stages lie on the ranks of a schedule.

    Raises:
        ValueError: If the plan has other stages, or no schedule of the catalogue has
            its stages on these ranks.
    """
    n_ranks, m = schedule.n_ranks, schedule.n_microbatches
    if (schedule.n_stages, n_ranks) != (
        plan.n_stages,
        plan.n_stages // plan.stages_per_rank,
    ):
        raise ValueError(
            f"the schedule {schedule.name!r} has {count(schedule.n_stages, 'stage')} on"
            f" {count(n_ranks, 'rank')}, but the plan {plan.cuts} has"
            f" {plan.n_stages}, {plan.stages_per_rank} on each rank"
        )
    name = next((each.name for each in placed(schedule.stage_ranks, m)), None)
    if name is None:
        raise ValueError(
            f"the stages of {schedule.name!r} lie on the ranks"
            f" {list(schedule.stage_ranks)}, where no plan puts them: choose one of the"
            f" placements of the catalogue"
        )
    return replace(plan, schedule=name, n_microbatches=m, stage_groups=())


def modelled(
    plan: Plan,
    profiles: Sequence[Profile],
    batch: int | None = None,
    machine: Machine | None = None,
    coding: CodingRate | None = None,
) -> tuple[Workload, UncutPlan, CostModel]:
    """Returns the costs of a plan.

    Args:
        plan: See `simulate_plan`.
        profiles: The profiles, the largest one last.
        batch: See `simulate_plan`.
        machine: See `simulate_plan`.
        coding: See `simulate_plan`.

    Returns:
        The minibatch on its machine, the plan without its cuts, and the cost model.

    Raises:
        ValueError: See `simulate_plan`.
    """
    check_plan(plan, profiles[0])
    conditions = conditions_of(plan, profiles).changed(batch, machine)
    batch = conditions.minibatch(plan.n_microbatches)
    machine = _used(plan, conditions.machine)
    holds = "disk" in plan.hold_in
    if machine.disk is None and (holds or plan.streamed):
        raise ValueError(
            "the plan puts something on disk: give the disk's speed, with"
            " machine=Machine(..., disk=Disk(read, write))"
        )
    dtype = plan.exchange_dtype or Wire().dtype
    wire = Wire(dtype, plan.error_feedback, coding or conditions.coding.get(dtype))
    narrowing = Narrowing.among(
        [each.pair for each in plan.messages], profiles[-1], conditions.coding, True
    )
    parts = None if plan.shares is None else integer_shares(plan.shares, batch)
    uncut = UncutPlan(
        plan.replicas,
        plan.n_stages // plan.stages_per_rank,
        plan.stages_per_rank,
        plan.schedule,
        plan.n_microbatches,
        plan.recompute,
        hold_dtype=plan.hold_dtype,
        streamed=plan.streamed,
        weight_groups=plan.weight_groups,
        stage_groups=plan.stage_groups,
    )
    overlaps = bool(conditions.overlap_minibatches)
    workload = Workload(profiles, machine, batch, wire, overlaps, narrowing)
    model = workload.cost_model(uncut, parts)
    model = recomputing(model, plan.recomputed, plan.cuts)
    if holds:
        model = model.waiting_on([place == "disk" for place in plan.hold_in])
    return workload, uncut, model


def predicted_step(
    timeline: Timeline, plan: Plan, profile: Profile | Sequence[Profile], **options: Any
) -> float:
    """Returns the seconds of a step of a plan, as :func:`divisible.best_plan` has them.

    Args:
        timeline: One minibatch of the plan, from :func:`simulate_plan`.
        plan: The plan.
        profile: The costs of the layers.
        **options: The other arguments of :func:`simulate_plan`.

    Returns:
        The seconds that a minibatch adds to many if minibatches overlap; else the
        makespan.
    """
    if plan.conditions is None or not plan.conditions.overlap_minibatches:
        return timeline.makespan
    known = CATALOGUE.get(plan.schedule)
    versions = 1 if known is None else known.weight_versions
    run = partial(simulate_plan, plan, profile, **options)
    return steady_seconds(timeline, lambda n: run(n_minibatches=n), versions)


def conditions_of(plan: Plan, profiles: Sequence[Profile]) -> Conditions:
    """Returns the conditions of a plan; those of ideal links if it has none.

    Args:
        plan: The plan.
        profiles: The profiles in use, the largest one last.
    """
    if plan.conditions is not None:
        return plan.conditions
    return Conditions(Machine(plan.n_ranks), batch=profiles[-1].n_samples)


def _used(plan: Plan, machine: Machine) -> Machine:
    """Returns the ranks of a machine that a plan needs."""
    if machine.ranks < plan.n_ranks:
        raise ValueError(
            f"the plan {plan.cuts} is for {plan.n_ranks} ranks, but the machine has"
            f" {machine.ranks}: give a machine with more ranks, or make another plan"
        )
    return replace(machine, ranks=plan.n_ranks)


def _with_exchange(timeline: Timeline, schedule: Schedule, spans: Spans) -> Timeline:
    """Returns a timeline with the exchange of each stage that has parameters."""
    exchanges = [
        (schedule.stage_ranks[s], f"exchange of stage {s}", *spans.of(s), "other")
        for s in np.flatnonzero(spans.end > spans.start).tolist()
    ]
    events = [*timeline, *exchanges]
    return Timeline(events, timeline.n_ranks, timeline.name) if exchanges else timeline


def check_plan(plan: Plan, profile: Profile) -> None:
    """Refuses a plan that is not complete, or for another model than the profile's.

    Raises:
        ValueError: If the plan is not complete or does not fit; the message says what
            is missing or differs.
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
