"""The workload: a minibatch of a model on a machine, from which cost models are made.

::

    profiles at some sizes ---> profile at the size of each microbatch, with the
                                costs of replicas and disks
    links, speeds, memory ----> at each place in a pipeline the slowest, and the
    of all ranks                least, that a replica has there
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from divisible.planning.coding import CodingRate
from divisible.planning.conditions import Conditions
from divisible.planning.cost_model import CostModel
from divisible.planning.cut_plan import LAYERS, CutPlan, UncutPlan
from divisible.planning.cuts import stage_plans
from divisible.planning.disk import segment_bytes, streamed_profile
from divisible.planning.gradient_exchange import GradientExchange, Wire
from divisible.planning.interpolation import interpolate
from divisible.planning.joint_weights import with_joint_weights
from divisible.planning.layer_choice import recomputing
from divisible.planning.machine import Machine
from divisible.planning.message_plan import MessagePlan
from divisible.planning.messages import Narrowing, message_plans
from divisible.planning.network import Links
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile, named_files
from divisible.planning.retained_arrays import FULL
from divisible.planning.rounding import Rounding
from divisible.planning.unequal_replicas import microbatches_of_largest, relative_loads
from divisible.schedules.catalogue import CATALOGUE, create
from divisible.schedules.groups import group_weights
from divisible.schedules.recomputation import recompute
from divisible.schedules.schedule import Schedule
from divisible.schedules.stage_groups import group_stages


class Workload:
    """A minibatch of a model on a machine.

    Args:
        profiles: The profiles of the model, sorted by size.
        machine: The machine.
        batch: Samples of the minibatch.
        wire: How replicas exchange gradients.
        overlaps: Whether minibatches overlap in plans that allow it.
        narrowing: The dtypes of messages to choose from; ``None`` to narrow none.
    """

    def __init__(
        self,
        profiles: Sequence[Profile],
        machine: Machine,
        batch: int,
        wire: Wire,
        overlaps: bool = False,
        narrowing: Narrowing | None = None,
    ) -> None:
        self.profiles, self.machine = profiles, machine
        self.batch, self.wire, self.overlaps = batch, wire, overlaps
        self.narrowing = narrowing
        # The machine has been checked when it was made.
        self._links = machine.links()
        self._memory, self._speeds = machine.rank_memory(), machine.rank_speeds()
        self._sized: dict[tuple, Profile] = {}
        self._pipelines: dict[tuple[int, int], tuple] = {}

    def memory(self, uncut: UncutPlan) -> np.ndarray:
        """Returns the least memory of any replica at each place in a pipeline."""
        n = uncut.replicas * uncut.n_ranks
        return self._memory[:n].reshape(uncut.replicas, -1).min(axis=0)

    def speeds(self, uncut: UncutPlan) -> np.ndarray:
        """Returns the speeds of the ranks, a row for each replica."""
        n = uncut.replicas * uncut.n_ranks
        return self._speeds[:n].reshape(uncut.replicas, uncut.n_ranks)

    def cost_model(
        self, uncut: UncutPlan, parts: Sequence[int] | None = None
    ) -> CostModel:
        """Returns the costs of a plan, for any cuts.

        The costs are those of the slowest replica at each place in the pipeline,
        because all replicas wait for each other in the end.

        Args:
            uncut: The plan.
            parts: Samples of each replica; equal ones by default.

        Raises:
            ValueError: If there are fewer samples than microbatches.
        """
        n_ranks, m = uncut.n_ranks, uncut.n_microbatches
        groups = uncut.stage_groups
        schedule = _schedule(
            uncut.schedule, uncut.n_stages, m, n_ranks, uncut.recompute, groups
        )
        schedule = group_weights(schedule, uncut.weight_groups)
        links, exchange = self._pipeline(uncut)
        # The first microbatches are the largest.
        sizes = microbatches_of_largest(parts, self.batch, uncut.replicas, m)

        def sized(n_samples: int) -> Profile:
            return self._profile(n_samples, uncut, exchange)

        def together(size: int) -> Profile:
            alone = uncut._replace(weight_groups=1)
            return self._profile(size * sizes[0], alone, exchange)

        speeds = self.speeds(uncut)
        if parts is not None:
            # Relative to the microbatches of the replica that has the largest ones.
            loads = relative_loads(parts, m, lambda n: sized(n).seconds)
            speeds = speeds / loads[:, None]
        model = CostModel.of(
            schedule,
            [sized(size) for size in sizes],
            speeds.min(axis=0),
            links,
            exchange,
            self.machine.disk,
            {size: together(size) for size in {*groups} - {1}},
            self.narrowing,
        )
        model = replace(model, overlaps=self._overlaps(uncut))
        if uncut.hold_dtype != FULL:
            model = replace(model, rounding=self._rounding)
        holds = uncut.hold_in == "disk"
        return model.waiting_on((True,) * n_ranks) if holds else model

    def cost_model_of(self, cut: CutPlan) -> CostModel:
        """Returns the costs of a plan that is cut."""
        model = self.cost_model(cut.uncut, cut.parts).waiting_on(cut.on_disk)
        return recomputing(model, cut.recomputed, cut.cuts)

    @functools.cached_property
    def _rounding(self) -> Rounding:
        return Rounding.of(self.profiles[-1])

    def plan(self, cut: CutPlan) -> Plan:
        """Returns the plan with the costs of its stages, and its conditions."""
        uncut, step, wire = cut.uncut, cut.step, self.wire
        model = self.cost_model_of(cut)
        plain = self.cost_model_of(replace(cut, recomputed=()))
        # Stages that share the memory of a rank have no limit of their own.
        limits = self.memory(uncut)
        if uncut.stages_per_rank > 1:
            limits = np.full(uncut.n_stages, np.inf)
        has_replicas = model.exchange is not None
        return Plan(
            cut.cuts,
            n_microbatches=uncut.n_microbatches,
            schedule=uncut.schedule,
            recompute="never" if uncut.recompute == LAYERS else uncut.recompute,
            recomputed=cut.recomputed,
            replicas=uncut.replicas,
            stages_per_rank=uncut.stages_per_rank,
            layers=tuple(layer.name for layer in model.largest.layers),
            stages=stage_plans(model, cut.cuts, limits, plain),
            exchange_dtype=wire.dtype if has_replicas else None,
            error_feedback=has_replicas and wire.error_feedback,
            exchange=None if step is None else step.exchange,
            shares=cut.parts,
            hold_in=tuple(
                "disk" if is_there else "memory" for is_there in cut.on_disk or ()
            ),
            hold_dtype=uncut.hold_dtype,
            streamed=uncut.streamed,
            weight_groups=uncut.weight_groups,
            stage_groups=uncut.stage_groups,
            messages=_message_plans(model, cut.cuts),
            step_seconds=None if step is None else step.seconds,
            bubble=None if step is None else step.bubble,
            conditions=Conditions(
                self.machine,
                batch=self.batch,
                profiles=named_files(self.profiles),
                coding=self._coding(model),
                overlap_minibatches=self._overlaps(uncut)
                if uncut.may_overlap
                else None,
            ),
        )

    def _overlaps(self, uncut: UncutPlan) -> bool:
        """Returns whether minibatches overlap; without a flush they always do."""
        versions = CATALOGUE[uncut.schedule].weight_versions
        return (self.overlaps or versions > 1) and uncut.may_overlap

    def _coding(self, model: CostModel) -> dict[str, CodingRate]:
        """Returns the rates of coding that the costs of a plan depend on."""
        rates = {} if self.narrowing is None else {**self.narrowing.coding}
        if model.exchange is not None:
            rates[self.wire.dtype] = model.exchange.coding
        return rates

    def _pipeline(self, uncut: UncutPlan) -> tuple[Links, GradientExchange | None]:
        """Returns the links of a pipeline, and its exchange with the other replicas."""
        key = uncut.replicas, uncut.n_ranks
        if key not in self._pipelines:
            links = self._links.of_first(uncut.replicas * uncut.n_ranks)
            exchange = self.wire.exchange(uncut.replicas, self.profiles[-1])
            if exchange is not None:
                exchange = exchange.on(
                    links.between_replicas(uncut.replicas),
                    self.speeds(uncut).min(axis=0),
                )
            self._pipelines[key] = links.slowest_replica(uncut.replicas), exchange
        return self._pipelines[key]

    def _profile(
        self, n_samples: int, uncut: UncutPlan, exchange: GradientExchange | None
    ) -> Profile:
        """Returns the profile of a microbatch, with the costs of replicas and disks."""
        has_replicas = exchange is not None
        key: tuple = n_samples, has_replicas, uncut.weight_groups
        segment = segment_bytes(float(self.memory(uncut).min()))
        if uncut.streamed:
            key += uncut.streamed, uncut.n_microbatches, segment
        if key not in self._sized:
            profile = interpolate(self.profiles, n_samples)
            if uncut.weight_groups > 1:
                size = uncut.weight_groups
                together = interpolate(self.profiles, size * n_samples)
                profile = with_joint_weights(profile, together, size)
            profile = streamed_profile(
                profile,
                uncut.streamed,
                self.machine.disk,
                uncut.n_microbatches,
                segment,
                has_replicas=has_replicas,
            )
            if exchange is not None:
                profile = exchange.with_residuals(profile)
            self._sized[key] = profile
        return self._sized[key]


def _message_plans(model: CostModel, cuts: Sequence[int]) -> tuple[MessagePlan, ...]:
    """Returns the dtypes of messages over each edge; none if none may be narrowed."""
    if model.narrowing is None:
        return ()
    whole = model.largest.sums.stages(cuts).output_bytes[:-1] / model.links.bandwidth
    return message_plans(*model.messages_of(cuts), whole)


# Plans that are tried one after the other often have the same schedule, or differ in
# recomputation only.
@functools.lru_cache(maxsize=16)
def _schedule(
    name: str,
    n_stages: int,
    n_microbatches: int,
    n_ranks: int,
    when: str,
    groups: tuple[int, ...],
) -> Schedule:
    if when in ("never", LAYERS):
        plain = create(name, n_stages, n_microbatches, n_ranks)
        return group_stages(plain, groups or 1)
    without = _schedule(name, n_stages, n_microbatches, n_ranks, "never", groups)
    return recompute(without, when)
