"""A schedule with the profiles, ranks and links that it runs on, wherever it is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from divisible.planning.disk import Disk
from divisible.planning.exchange_plan import ExchangePlan
from divisible.planning.gradient_exchange import GradientExchange, Spans
from divisible.planning.machine import (
    Network,
    edges,
    exchange_links,
    slowest_replica,
)
from divisible.planning.memory import StageCosts, rank_bytes, stage_costs
from divisible.planning.profile import Profile
from divisible.planning.unequal_replicas import microbatches_of_largest, relative_loads
from divisible.schedules.costs import Costs
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import simulate
from divisible.schedules.timeline import Timeline


class Setting(NamedTuple):
    """A way to run a model: with a cut it tells what a step takes and holds.

    Attributes:
        schedule: With the forwards that run again.
        profiles: One for each microbatch, at its size.
        network: The links between the ranks of a replica.
        speeds: Of these ranks.
        exchange: Between the replicas; ``None`` for one.
        links: From each rank to the same one of other replicas.
        paces: As ``speeds``, in microbatches of the replica that has the largest ones;
            ``None`` if all have equal ones.
        disk: Of each rank; ``None`` if there is none to use.
        on_disk: For each rank whether its microbatches wait there; ``None`` if none do.
    """

    schedule: Schedule
    profiles: Sequence[Profile]
    network: Network
    speeds: np.ndarray
    exchange: GradientExchange | None = None
    links: Network | None = None
    paces: np.ndarray | None = None
    disk: Disk | None = None
    on_disk: Sequence[bool] | None = None

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        sized: Callable[[int], Profile],
        batch: int,
        parts: Sequence[int] | None,
        network: Network,
        speeds: np.ndarray,
        exchange: GradientExchange | None,
    ) -> Setting:
        """Reckons for each place in the pipeline with the slowest replica there.

        Args:
            schedule: As of the class.
            sized: Returns the profile of a microbatch with so many samples, with all
                that a rank spends on it.
            batch: Samples of a minibatch.
            parts: Those of each replica; ``None`` for equal ones.
            network: The links between all ranks.
            speeds: Of all ranks.
            exchange: As of the class.
        """
        replicas, links = 1, None
        if exchange is not None:
            replicas = exchange.replicas
            links = exchange_links(network, replicas, schedule.n_ranks)
        one, slowest = slowest_replica(network, speeds, replicas)
        m, paces = schedule.n_microbatches, None
        # The first microbatches are the largest.
        sizes = microbatches_of_largest(parts, batch, replicas, m)
        if parts is not None:
            loads = relative_loads(parts, m, lambda n: sized(n).seconds)
            of_replicas = speeds.reshape(replicas, schedule.n_ranks)
            paces = (of_replicas / loads[:, None]).min(axis=0)
        profiles = [sized(size) for size in sizes]
        return cls(schedule, profiles, one, slowest, exchange, links, paces)

    @property
    def computing(self) -> np.ndarray:
        """How fast each rank of a pipeline computes the microbatches of ``profiles``.

        What it codes for the exchange does not depend on samples.
        """
        return self.speeds if self.paces is None else self.paces

    @property
    def largest(self) -> Profile:
        """At the size of the largest microbatch."""
        return self.profiles[0]

    @property
    def buffers(self) -> int:
        """Bytes for the messages of replicas, if a rank has all parameters."""
        if self.exchange is None:
            return 0
        return self.exchange.buffer_bytes(round(self.largest.sums.gradients[-1]))

    def costs(self, cuts: Sequence[int]) -> Costs:
        """Returns what the simulator needs to know of cuts."""
        return stage_costs(
            cuts,
            self.schedule,
            self.profiles,
            self.network,
            self.computing,
            self.disk,
            self.stages_on_disk,
        )

    @property
    def stages_on_disk(self) -> np.ndarray | None:
        """For each stage whether its microbatches wait on disk."""
        if self.on_disk is None:
            return None
        return np.array(self.on_disk)[list(self.schedule.stage_ranks)]

    def stages(self) -> StageCosts:
        """Returns what stages cost, whatever layers they have."""
        schedule = self.schedule
        speeds = self.computing[list(schedule.stage_ranks)]
        links = edges(self.network, schedule)
        # The stages of a rank share its buffers.
        buffers = self.buffers * schedule.n_ranks / schedule.n_stages
        return StageCosts.of(
            self.largest, schedule, speeds, links, buffers, self.stages_on_disk
        )

    def rank_bytes(self, cuts: Sequence[int]) -> np.ndarray:
        """Returns what each rank holds at its peak."""
        return rank_bytes(
            cuts, self.schedule, self.largest, self.buffers, self.stages_on_disk
        )

    def simulate(self, cuts: Sequence[int]) -> Timeline:
        """Simulates forward and backward on links that carry a message at a time."""
        costs = self.costs(cuts)
        if not self.network.overlap:
            return simulate(self.schedule, costs, overlap=False)
        links = "serial" if np.any(costs.transfer) else "parallel"
        return simulate(self.schedule, costs, links=links)

    def least_after(self, cuts: Sequence[int]) -> np.ndarray:
        """Returns how long each rank exchanges at least after its last backward."""
        if self.exchange is None:
            return np.zeros(self.schedule.n_ranks)
        return self.exchange.least_seconds(
            self.schedule, self._gradients(cuts), self.links, self.speeds
        )

    def spans(self, cuts: Sequence[int], timeline: Timeline) -> Spans | None:
        """Returns when gradients are exchanged in a simulated step.

        Args:
            cuts: Where the model is cut.
            timeline: From :meth:`simulate`.
        """
        if self.exchange is None:
            return None
        return self.exchange.spans(
            self.schedule, timeline, self._gradients(cuts), self.links, self.speeds
        )

    def exchange_plan(
        self, cuts: Sequence[int], timeline: Timeline, spans: Spans | None
    ) -> ExchangePlan | None:
        """Returns what the exchange costs, of which some is hidden.

        Args:
            cuts: Where the model is cut.
            timeline: From :meth:`simulate`.
            spans: From :meth:`spans`.
        """
        gradients = self._gradients(cuts)
        if spans is None or not any(gradients):
            return None
        ranks = np.array(self.schedule.stage_ranks)

        def of_ranks(values: Sequence[float]) -> np.ndarray:
            return np.bincount(ranks, weights=values, minlength=self.schedule.n_ranks)

        sent = of_ranks([self.exchange.sent_bytes(n) for n in gradients])
        last = ranks[np.where(gradients, spans.end, 0.0).argmax()]
        seconds = float(of_ranks(spans.end - spans.start)[last])
        after = max(0.0, float(spans.end.max()) - timeline.makespan)
        return ExchangePlan(
            sent_bytes=int(sent.max()),
            seconds=seconds,
            coding_seconds=self.exchange.coding_seconds(
                float(of_ranks(gradients)[last]), float(self.speeds[last])
            ),
            hidden_seconds=max(0.0, seconds - after),
        )

    def _gradients(self, cuts: Sequence[int]) -> list[int]:
        """Returns the elements that replicas exchange of each stage."""
        return self.largest.sums.stages(cuts).n_gradients.tolist()
