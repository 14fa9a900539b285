"""Chooses stages, microbatches, schedule and recomputation together.

Every plan is cut so that its slowest stage is as fast as possible. The work of its
busiest rank is a bound on its step. So only plans that could still win with these cuts
are simulated::

    uncut plan --> cuts --> do not fit: out
                       --> bound        --> simulate in the order of the bounds, until
                                            the bound exceeds the best
                                        --> move the cuts of the fastest
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from divisible.communication.wire import check_wire_dtype
from divisible.keywords import names_keywords
from divisible.planning.alternatives import RefusedPlan, alternatives
from divisible.planning.coding import CodingRate
from divisible.planning.cut_plan import LAYERS, WAYS, CutPlan, UncutPlan
from divisible.planning.cuts import MemoryLimitError
from divisible.planning.cutting import cut_plans, is_bound
from divisible.planning.gradient_exchange import Wire
from divisible.planning.interpolation import sort_profiles
from divisible.planning.layer_cost import SAMPLE_BYTES
from divisible.planning.machine import Machine, check_machine
from divisible.planning.messages import Narrowing
from divisible.planning.moves import SAME, grouped, moved, simulated
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile
from divisible.planning.retained_arrays import FULL
from divisible.planning.search_space import SearchSpace
from divisible.planning.workload import Workload
from divisible.schedules.catalogue import NAMES, TRIED_BY_DEFAULT

# Plans whose cuts are improved: the largest number of them, and the largest ratio of
# their seconds to the best.
_IMPROVED, _NEAR = 5, 1.1
# Effort of the trials for each of them; some seconds' worth.
_EFFORT = 2 * 10**6


class NoConfigurationError(ValueError):
    """None of the plans to try can run, however much memory there is."""


@names_keywords
def best_plan(
    profile: Profile | Sequence[Profile],
    machine: Machine,
    *,
    batch: int | None = None,
    microbatches: Sequence[int] | None = None,
    schedules: Sequence[str] = TRIED_BY_DEFAULT,
    recompute: Sequence[str] = WAYS,
    pipeline_ranks: Sequence[int] | None = None,
    replicas: tuple[int, int] = (1, 1),
    weight_groups: Sequence[int] | None = None,
    hold_dtypes: Sequence[str] = (FULL,),
    exchange_dtype: str = "fp32",
    error_feedback: bool = False,
    coding: CodingRate | None = None,
    overlap_minibatches: bool = True,
    message_dtypes: Sequence[str | tuple[str, str]] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Finds the fastest way to run a model on a machine.

    Searches the number of stages, of microbatches and of replicas, the schedule and the
    recomputation. Each configuration is cut optimally (:func:`divisible.partition`),
    and simulated (:func:`divisible.simulate`) unless it does not fit or cannot win with
    these cuts. The cuts of the fastest ones are then moved as long as the simulated
    step becomes shorter, for very large models as far as some seconds allow. Their
    stages take several microbatches as one where that is faster, if the profile says
    that the layers can (:class:`divisible.LayerCost`).

    The step is forward and backward of a minibatch, and the part of the exchange of
    gradients between replicas that is not hidden (see
    `divisible.planning.gradient_exchange`). Without replicas and streamed layers,
    minibatches overlap, so the step is one of a long run
    (`divisible.schedules.steady_state`).

    Replicas of unequal speed get unequal shares of a minibatch: pass the plan's
    ``shares`` to :class:`data_parallel.ReplicaIterator`.

    Fewer ranks than there are may be faster; the first ones are used. With replicas,
    neighbouring ranks make a pipeline, and each rank is assumed to have the links to
    the other replicas for itself: if ranks share a link, give each its part of the
    bandwidth.

    Args:
        profile: Costs of the layers. A profile at one size of microbatch is scaled in
            proportion, which makes small microbatches look too fast. Give several, such
            as at the whole minibatch, a quarter and a sixteenth of it.
        machine: The ranks with their memory, speeds, links and disks. A disk is used
            where memory does not suffice: microbatches wait there for their backward
            (``plan.hold_in``), or weights of layers are there (``plan.streamed``).
            Microbatches do not wait there if PyTorch holds activations of a layer.
        batch: Samples of the minibatch; those of the largest profile by default.
        microbatches: The numbers of microbatches to try; by default the least number
            for each size of microbatch. For more than 1,024 samples, some 60 numbers up
            to 1,024 are tried, and if nothing fits, 4,096 and so on up to 65,536.
        schedules: The names of the schedules to try.
        recompute: The ways of recomputation to try: of microbatches
            (`divisible.schedules.recomputation`), and ``'layers'``, by which the layers
            of each stage are chosen that free most bytes for their second forwards.
        pipeline_ranks: The numbers of ranks of a pipeline to try; by default all up to
            the machine's.
        replicas: The fewest and the most replicas to try, ``(least, most)``.
        weight_groups: The numbers of microbatches whose weight gradients are one
            product to try. By default 1, 4 and all, if there are profiles at several
            sizes, which show what groups gain.
        hold_dtypes: The dtypes to try in which activations of float32 wait for their
            backward (``plan.hold_dtype``). With ``('float32', 'bfloat16')`` plans may
            round them, if that makes a step shorter: there is then room for another
            schedule, or for fewer microbatches, without recomputation.
        exchange_dtype: The dtype in which replicas exchange gradients, such as
            ``'fp32'`` or ``'int8'``: a name in `divisible.communication.wire.WIRE`.
        error_feedback: Whether replicas keep the losses of encodings, which takes
            memory.
        coding: Speed of coding gradients for the wire; by default the rate of the
            profile, or a rate measured here if it has none.
        overlap_minibatches: Whether minibatches may overlap. Give ``False`` if they do
            not in the run, such as with a hook that needs the gradients of all stages
            (`pipeline.step.overlap`).
        message_dtypes: Dtypes to which messages between stages may be narrowed, each
            one name, or two for activations and gradients. For each edge and direction
            the fastest one is taken, by the link and by the rates of coding in the
            profile. The dtype is ``'fp32'`` if coding takes longer than it saves;
            coding counts double (`divisible.planning.messages`).
        progress: Function that is called with the number of configurations seen and the
            number of all.

    Returns:
        Plan: The plan. It predicts ``step_seconds``, ``bubble``, and the costs of the
        ``exchange`` between replicas; ``bound`` is for other orders of its actions. It
        has the ``alternatives`` with reasons, the ``conditions``, and the largest
        ``scatter`` of the profiles. A plan that is slower by no more than the scatter
        may be as fast.

    Raises:
        MemoryLimitError: If nothing fits. Where several stages on a rank share its
            memory, some ways to share it are tried, not all.
        TypeError: If ``machine`` is not a machine, or a number is not an integer.
        ValueError: If an argument is out of range.

    Example:
        >>> from divisible import LayerCost, Network
        >>> layers = [LayerCost(1.0, 1.0, 1.0, output_bytes=10**6)] * 8
        >>> plan = best_plan(
        ...     Profile(layers, n_samples=8), Machine(4, network=Network(latency=0.1)),
        ...     microbatches=[1, 2, 4, 8], schedules=['1f1b'])
        >>> plan.cuts, plan.n_microbatches, round(plan.step_seconds, 2)
        ([0, 2, 4, 6, 8], 8, 9.85)
    """
    profiles = sort_profiles([profile] if isinstance(profile, Profile) else profile)
    batch = profiles[-1].n_samples if batch is None else batch
    check_machine(machine)
    space = SearchSpace(
        machine.ranks,
        len(profiles[0]),
        batch,
        microbatches,
        schedules,
        recompute,
        pipeline_ranks,
        replicas,
        _groups(profiles, batch) if weight_groups is None else weight_groups,
        hold_dtypes,
    )
    check_wire_dtype("exchange_dtype", exchange_dtype)
    _check_size(profiles[-1], batch)
    wire = Wire(exchange_dtype, error_feedback, coding)
    narrowing = Narrowing.among(message_dtypes, profiles[-1])
    workload = Workload(profiles, machine, batch, wire, overlap_minibatches, narrowing)
    fitting, refused = _cut(workload, space.rounds(), progress)
    if not fitting and not refused:
        raise NoConfigurationError(f"no configuration of {space} can run")
    if not fitting:
        least = max(refused, key=_thrift)
        raise MemoryLimitError(
            f"none of {len(refused)} configurations fits into the memory of the ranks."
            f" With {least.uncut}: {least.reason}"
        )
    _simulate(workload, fitting)
    _improve(workload, fitting, {"never", LAYERS} <= {*space.recompute})
    best = _fastest(fitting)
    seen = [one.scatter for one in profiles if one.scatter is not None]
    scatter = max(seen, default=None)
    model, least = workload.cost_model_of(best), best.bound
    if not model.overlaps:
        least = model.least_step(best.cuts)
    return replace(
        workload.plan(best),
        alternatives=alternatives(workload, best, fitting, refused, scatter),
        scatter=scatter,
        # Sums of the same numbers in another order differ by rounding.
        bound=min(least, best.step.seconds),
    )


def _groups(profiles: Sequence[Profile], batch: int) -> Sequence[int]:
    """Returns the sizes of groups of weight gradients to try by default."""
    return (1,) if len(profiles) == 1 else (1, *{min(4, batch), batch} - {1})


def _check_size(profile: Profile, batch: int) -> None:
    """Refuses minibatches whose memory is not a 64-bit integer."""
    of_layers = sum(float(profile.column(name).sum()) for name in SAMPLE_BYTES)
    n_bytes = batch / profile.n_samples * of_layers
    if n_bytes >= 2**62:
        raise ValueError(
            f"batch is {batch}, for which the layers would hold {n_bytes:.0e} bytes:"
            f" give the samples of one minibatch"
        )


def _cut(
    workload: Workload,
    rounds: Iterable[Sequence[UncutPlan]],
    progress: Callable[[int, int], None] | None,
) -> tuple[list[CutPlan], list[RefusedPlan]]:
    """Cuts the model for all plans of the first round in which some fit.

    Args:
        workload: The minibatch on its machine.
        rounds: Rounds of plans, each made when its turn comes.
        progress: Function that is called with the number of plans seen and the number
            of all.

    Returns:
        The plans that fit, and those of all rounds so far that do not.
    """
    fitting: list[CutPlan] = []
    refused: list[RefusedPlan] = []
    for plans in rounds:
        n_before = len(refused)
        ways = {uncut.recompute for uncut in plans}
        for n_seen, uncut in enumerate(plans, n_before + 1):
            try:
                # Without a layer that runs again, the plan is one that is tried anyway.
                repeats = uncut.recompute == LAYERS and "never" in ways
                if not repeats or is_bound(workload, uncut):
                    found = cut_plans(workload, uncut)
                    fitting += [cut for cut in found if cut.recomputed or not repeats]
            except MemoryLimitError as error:
                refused.append(RefusedPlan(uncut, str(error)))
            if progress is not None:
                progress(n_seen, n_before + len(plans))
        if fitting:
            break
    return fitting, refused


def _thrift(refused: RefusedPlan) -> tuple:
    """Orders plans by how little memory they should need."""
    uncut = refused.uncut
    return (
        uncut.n_ranks,
        -uncut.stages_per_rank,
        uncut.n_microbatches,
        uncut.weight_groups,
        uncut.hold_dtype != FULL,
        # The error of a plan without a choice of layers has more details.
        -1 if uncut.recompute == LAYERS else WAYS.index(uncut.recompute),
        -NAMES.index(uncut.schedule),
    )


def _simulate(workload: Workload, plans: list[CutPlan]) -> None:
    """Replaces the plans that could win by simulated ones."""
    best = np.inf
    for i in sorted(range(len(plans)), key=lambda i: plans[i].bound):
        if plans[i].bound > best * SAME:
            break
        plans[i] = simulated(workload, plans[i])
        best = min(best, plans[i].step.seconds)


def _improve(workload: Workload, plans: list[CutPlan], chooses: bool) -> None:
    """Improves the cuts and groups of the fastest simulated plans.

    Args:
        workload: The minibatch on its machine.
        plans: All plans, which are replaced.
        chooses: Whether layers may run again to make room for groups.
    """

    def order(i: int) -> tuple:
        # Plans of the same time, up to rounding, are ordered by their needs.
        return float(f"{plans[i].step.seconds:.5g}"), *_frugality(plans[i])

    fastest = sorted((i for i, p in enumerate(plans) if p.step is not None), key=order)
    limit = _NEAR * plans[fastest[0]].step.seconds
    # Schedules that tie, such as those with one microbatch, would all be improved to
    # the same. The first of them stands for the others.
    different: dict[tuple, int] = {}
    for i in fastest:
        seconds, n_ranks, *_ = order(i)
        different.setdefault((seconds, n_ranks, *plans[i].cuts), i)
    for i in [*different.values()][:_IMPROVED]:
        if plans[i].step.seconds <= limit:
            plans[i] = moved(workload, plans[i], _EFFORT)
            together = grouped(workload, plans[i], chooses)
            if together is not plans[i]:
                # Other cuts may suit the groups.
                plans[i] = moved(workload, together, _EFFORT)


def _fastest(plans: Sequence[CutPlan]) -> CutPlan:
    """Returns the winner among the simulated plans."""
    done = [plan for plan in plans if plan.step is not None]
    best = min(plan.step.seconds for plan in done)
    same = [plan for plan in done if plan.step.seconds <= best * SAME]
    return min(same, key=_frugality)


def _frugality(plan: CutPlan) -> tuple:
    """Returns a key that is least for the plan with the least needs."""
    uncut, step = plan.uncut, plan.step
    return (
        uncut.replicas * uncut.n_ranks,
        uncut.hold_dtype != FULL,
        WAYS.index(uncut.recompute),
        uncut.hold_in != "memory",
        len(uncut.streamed),
        step.held,
        uncut.stages_per_rank,
        uncut.weight_groups,
        sum(uncut.stage_groups),
        uncut.n_microbatches,
        step.in_flight,
    )
