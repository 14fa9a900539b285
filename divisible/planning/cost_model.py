"""The cost model: seconds and bytes of a step, for any cuts into stages.

::

    profile of each microbatch --+
    schedule --------------------+--> CostModel
    speeds, links, disk ---------+        |  cuts
    exchange between replicas ---+        v
                          seconds, bytes, timeline, spans of the exchange

A stage holds its parameters, their gradients and the optimizer's state. With two weight
versions it holds more copies (`divisible.schedules.weight_versions`). For each
microbatch in flight it holds the input, and while there is a graph, what the layers
hold. Pending weight gradients hold arrays. A layer that runs has a workspace, while the
layers behind it do not hold their activations yet, or no more.
There is a message from either side, room for messages before they come, and the buffers
for gradients that replicas exchange::

    bytes = fixed + excess + (1 + posted) * input + (1 + posted) * output + buffers
            + max over moments (in_flight * input + graphs * graph + pending * pending)
    excess = max over layers (workspace - activations of the layers behind)

Where weight gradients are pending, they are computed while other microbatches hold all
activations. There the whole workspace of the layer that needs most counts.

`divisible.schedules.held` derives from the actions of the schedule how many
microbatches are held at which moment. A stage may hold most activations at one moment,
and most pending weight gradients at another; the worst counts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from chainer_kernels.kept_weights import SHARE
from divisible.planning.disk import Disk
from divisible.planning.expected_costs import ExchangePlan
from divisible.planning.gradient_exchange import GradientExchange, Spans
from divisible.planning.layer_sums import (
    LayerSums,
    Posted,
    StageSums,
    held_bytes,
    passing_bytes,
)
from divisible.planning.messages import Messages, Narrowing, both_ways, costs_of
from divisible.planning.network import Links
from divisible.planning.profile import Profile
from divisible.planning.rounding import Rounding
from divisible.schedules.costs import Costs, Values
from divisible.schedules.held import Moments, moments, peaks
from divisible.schedules.lower_bound import lower_bound
from divisible.schedules.recomputation import recomputed_share
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import simulate
from divisible.schedules.stage_groups import stage_group_sizes
from divisible.schedules.timeline import Timeline
from divisible.schedules.weight_versions import n_copies

_SAVED = ("forward_saved", "input_saved", "weight_saved")


@dataclass(frozen=True)
class CostModel:
    """The costs of a schedule's stages on their ranks, for any cuts.

    Nothing is checked here: numbers are those of a :class:`~divisible.Machine` and of
    profiles, which were checked when they were made.

    Attributes:
        schedule: The schedule, with the forwards that run again.
        profiles: The profile of each microbatch, at its size; the first is the largest.
        speeds: Speed of the rank of each stage, of shape (n_stages,), relative to the
            machine where the profiles were measured.
        links: The links between neighbouring stages.
        exchange: The exchange between replicas; ``None`` for one pipeline.
        disk: The disk of each rank; ``None`` if there is none to use.
        on_disk: For each stage whether its microbatches wait there, of shape
            (n_stages,); ``None`` if none do.
        together: The profile of several microbatches together, by their number, for
            stages that compute them as one.
        narrowing: The dtypes of messages to choose from; ``None`` to narrow none.
        spares_none: Whether stages are to be weighed as if every microbatch ran its
            forward again, if any does: among many microbatches, one that is spared does
            not count.
        overlaps: Whether a rank begins the next minibatch while others are still in
            this one.
        rounding: Rounding of activations while they wait; ``None`` without.

    Example:
        >>> from divisible.planning.layer_cost import LayerCost
        >>> from divisible.planning.network import Network
        >>> from divisible.schedules import gpipe
        >>> profile = Profile([LayerCost(1.0, 1.0, 1.0)] * 4, n_samples=8)
        >>> model = CostModel.of(
        ...     gpipe(2, 3), [profile] * 3, np.array([1.0, 2.0]), Network().links(2))
        >>> model.seconds([0, 2, 4]).tolist(), model.simulate([0, 2, 4]).makespan
        ([6.0, 3.0], 21.0)
    """

    schedule: Schedule
    profiles: Sequence[Profile]
    speeds: np.ndarray
    links: Links
    exchange: GradientExchange | None = None
    disk: Disk | None = None
    on_disk: np.ndarray | None = None
    together: Mapping[int, Profile] = field(default_factory=dict)
    narrowing: Narrowing | None = None
    spares_none: bool = False
    overlaps: bool = False
    rounding: Rounding | None = None

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        profiles: Sequence[Profile],
        speeds: np.ndarray,
        links: Links,
        exchange: GradientExchange | None = None,
        disk: Disk | None = None,
        together: Mapping[int, Profile] | None = None,
        narrowing: Narrowing | None = None,
    ) -> CostModel:
        """Returns the costs on ranks, each of which may have several stages.

        The arguments are the attributes of the same names. But ``speeds`` are those of
        ranks, of shape (n_ranks,), and ``links`` are those between ranks.
        """
        ranks = schedule.stage_ranks
        return cls(
            schedule,
            profiles,
            speeds[list(ranks)],
            links.between_stages(ranks),
            exchange,
            disk,
            together=together or {},
            narrowing=narrowing,
        )

    @property
    def n_stages(self) -> int:
        """The number of stages."""
        return self.schedule.n_stages

    @property
    def largest(self) -> Profile:
        """The profile at the size of the largest microbatch."""
        return self.profiles[0]

    @functools.cached_property
    def moments(self) -> Moments:
        """The moments at which the stages hold most."""
        if self.on_disk is None and self.rounding is None:
            return self.schedule.moments
        return moments(self.schedule, self.on_disk, self.rounding is not None)

    @functools.cached_property
    def posted(self) -> Posted:
        """The messages that stages have room for before they come."""
        return Posted.of(self.schedule, self.moments)

    @functools.cached_property
    def recomputed(self) -> np.ndarray:
        """For each stage the share of the microbatches whose forward runs again."""
        share = recomputed_share(self.schedule)
        return np.ceil(share) if self.spares_none else share

    @functools.cached_property
    def copies(self) -> np.ndarray:
        """For each stage the arrays of its weights' size that it holds besides."""
        return n_copies(self.schedule)

    @functools.cached_property
    def exchange_bytes(self) -> int:
        """Bytes of a rank's buffers for the messages of replicas."""
        if self.exchange is None:
            return 0
        return self.exchange.buffer_bytes(round(self.largest.sums.gradients[-1]))

    @property
    def stage_exchange_bytes(self) -> float:
        """The part of :attr:`exchange_bytes` of each stage."""
        return self.exchange_bytes * self.schedule.n_ranks / self.n_stages

    def waiting_on(self, ranks: Sequence[bool] | None) -> CostModel:
        """Returns the same costs with microbatches that wait on disks of some ranks.

        Args:
            ranks: For each rank whether its microbatches wait there; ``None`` for none.
        """
        on_disk = None
        if ranks is not None:
            on_disk = np.array(ranks)[list(self.schedule.stage_ranks)]
        return replace(self, on_disk=on_disk)

    def compute_seconds(self, sums: LayerSums | StageSums) -> np.ndarray:
        """Returns the seconds that stages compute for one microbatch at speed 1.

        Args:
            sums: Sums over layers, which are the last axis of the result; stages are
                the first axis.
        """
        backward = sums.backward_input + sums.backward_weight
        return (1 + self.recomputed[:, None]) * sums.forward + backward

    def seconds(self, cuts: Sequence[int]) -> np.ndarray:
        """Returns the seconds that each stage computes for the largest microbatch."""
        sums = self.largest.sums.stages(cuts)
        return np.diagonal(self.compute_seconds(sums)) / self.speeds

    def bytes(self, cuts: Sequence[int]) -> np.ndarray:
        """Returns the bytes that each stage holds at its peak."""
        sums = self.largest.sums.stages(cuts)
        copies = self.copies * sums.parameter_bytes
        held = held_bytes(sums, self.moments, self.posted)
        return held + self.stage_exchange_bytes + copies

    def rank_bytes(self, cuts: Sequence[int]) -> np.ndarray:
        """Returns the bytes that each rank holds at its peak, for all its stages."""
        schedule, sums = self.schedule, self.largest.sums.stages(cuts)
        ranks = np.array(schedule.stage_ranks)
        # Only one stage of a rank computes at a time.
        memory = np.zeros(schedule.n_ranks)
        passing = passing_bytes(sums, self.moments.has_pending)
        np.maximum.at(memory, ranks, passing)
        memory += self.exchange_bytes
        fixed = sums.fixed_bytes + self.copies * sums.parameter_bytes
        np.add.at(memory, ranks, fixed + self.posted.bytes(sums))
        held = peaks(
            schedule,
            sums.input_bytes + sums.graph_bytes,
            sums.pending_bytes,
            sums.input_bytes,
            self.on_disk,
            None if self.rounding is None else self.rounding.saved_bytes(sums),
        )
        return memory.round().astype(np.int64) + np.array(held)

    def prepared_bytes(self, cuts: Sequence[int], memory: np.ndarray) -> np.ndarray:
        """Returns the bytes of prepared weights that each rank keeps besides.

        They are kept in a part of the memory that is free, so no plan needs them. With
        one microbatch none are kept.

        Args:
            cuts: Positions of the cuts in the model.
            memory: Bytes that each rank may use; infinite without a limit.
        """
        sums = self.largest.sums.stages(cuts)
        ranks = np.array(self.schedule.stage_ranks)
        wanted = np.bincount(ranks, sums.prepared_bytes, self.schedule.n_ranks)
        wanted *= self.schedule.n_microbatches > 1
        free = np.maximum(memory - self.rank_bytes(cuts), 0.0)
        return np.minimum(wanted, SHARE * free).astype(np.int64)

    def phase_seconds(self, cuts: Sequence[int]) -> np.ndarray:
        """Returns the seconds that each stage takes for each microbatch.

        Returns:
            Seconds of forward, input gradients and weight gradients, of shape
            (3, n_stages, n_microbatches).
        """
        sizes = [profile.n_samples for profile in self.profiles]
        by_size = {
            size: profile.sums.stages(cuts)[:3]
            for size, profile in dict(zip(sizes, self.profiles)).items()
        }
        seconds = np.stack([by_size[size] for size in sizes], axis=2)
        return seconds / self.speeds[:, None]

    def saved_seconds(self, cuts: Sequence[int]) -> np.ndarray:
        """Returns the seconds that each microbatch of a group saves but the first.

        Returns:
            Seconds of forward, input gradients and weight gradients, of shape
            (3, n_stages).
        """
        alone = np.stack(self.largest.sums.stages(cuts)[:3])
        saved = np.zeros_like(alone)
        sizes = np.array(stage_group_sizes(self.schedule))
        for size, profile in self.together.items():
            whole = np.stack(profile.sums.stages(cuts)[:3])
            each = np.maximum(size * alone - whole, 0.0) / (size - 1)
            saved[:, sizes == size] = each[:, sizes == size]
        return saved / self.speeds

    def messages_of(self, cuts: Sequence[int]) -> tuple[Messages, Messages]:
        """Returns messages forward and backward of each stage but the last."""
        n_bytes = self.largest.sums.stages(cuts).output_bytes[:-1]
        return both_ways(self.narrowing, n_bytes, self.links.bandwidth, self.speeds)

    def disk_seconds(self, cuts: Sequence[int]) -> tuple[Values, Values]:
        """Returns the seconds of writing each stage's microbatch to disk, and back."""
        if self.on_disk is None:
            return 0.0, 0.0
        sums = self.largest.sums.stages(cuts)
        if self.rounding is not None:
            sums = self.rounding.rounded(sums)
        share = 1 - recomputed_share(self.schedule)
        held = self.on_disk * (sums.input_bytes + share * sums.graph_bytes)
        return held / self.disk.write, held / self.disk.read

    def costs(self, cuts: Sequence[int]) -> Costs:
        """Returns the costs of cuts, for the simulator.

        Returns:
            Costs: Seconds of shape (n_stages, n_microbatches); bytes for the largest
            microbatch.
        """
        sums = self.largest.sums.stages(cuts)
        write, read = self.disk_seconds(cuts)
        others = dict(zip(_SAVED, self.saved_seconds(cuts))) if self.together else {}
        if self.rounding is not None:
            others.update(self.rounding.costs(sums, self.schedule, self.speeds))
        forward, backward = self.messages_of(cuts)
        if self.narrowing is not None:
            others.update(costs_of(forward, backward))
        return Costs(
            *self.phase_seconds(cuts),
            transfer=forward.link,
            latency=self.links.latency,
            activation_bytes=sums.input_bytes + sums.graph_bytes,
            checkpoint_bytes=sums.input_bytes,
            pending_bytes=sums.pending_bytes,
            weight_bytes=sums.parameter_bytes,
            write=write,
            read=read,
            **others,
        )

    def simulate(self, cuts: Sequence[int], n_minibatches: int = 1) -> Timeline:
        """Simulates forward and backward on links that carry a message at a time."""
        costs = self.costs(cuts)
        return simulate(self.schedule, costs, *self._sharing(costs), n_minibatches)

    def least_step(self, cuts: Sequence[int]) -> float:
        """Returns seconds that no order of the same actions goes below.

        The step ends with the exchange of gradients, if there is one.
        """
        costs, after = self.costs(cuts), self.least_after(cuts)
        return lower_bound(self.schedule, costs, *self._sharing(costs), after)

    def _sharing(self, costs: Costs) -> tuple[bool, str]:
        """Returns whether messages overlap with computations, and who shares links."""
        overlap = self.links.overlap
        return overlap, "serial" if overlap and np.any(costs.transfer) else "parallel"

    def least_after(self, cuts: Sequence[int]) -> np.ndarray:
        """Returns the least seconds of each rank's exchange after its last backward."""
        if self.exchange is None:
            return np.zeros(self.schedule.n_ranks)
        return self.exchange.least_seconds(self.schedule, self._gradients(cuts))

    def spans(self, cuts: Sequence[int], timeline: Timeline) -> Spans | None:
        """Returns when gradients are exchanged in a simulated step.

        Args:
            cuts: Positions of the cuts in the model.
            timeline: From :meth:`simulate`.
        """
        if self.exchange is None:
            return None
        return self.exchange.spans(self.schedule, timeline, self._gradients(cuts))

    def exchange_plan(
        self, cuts: Sequence[int], timeline: Timeline, spans: Spans | None
    ) -> ExchangePlan | None:
        """Returns the costs of the exchange, a part of which is hidden.

        Args:
            cuts: Positions of the cuts in the model.
            timeline: From :meth:`simulate`.
            spans: From :meth:`spans`.
        """
        if spans is None:
            return None
        return self.exchange.expected(
            self.schedule, timeline, spans, self._gradients(cuts)
        )

    def _gradients(self, cuts: Sequence[int]) -> list[int]:
        """Returns the number of elements of each stage that replicas exchange."""
        return self.largest.sums.stages(cuts).n_gradients.tolist()
