"""The predicted costs of the exchange of gradients between replicas of a pipeline.

Each rank averages its gradients with those at the same place in the other replicas. It
may begin with a stage when the last microbatch has added to the stage's gradients. Late
stages are ready early, and are exchanged in the bubble at the end of the step::

    rank 0  ...  0B5      0B6      0B7|==== exchange ====|
    rank 1  ...      1B6      1B7|==== exchange ====|
                                      ^ the last backward has ended: the exchange
                                        before this is hidden

An exchange is divided into chunks. While one is on the wire, another is coded. So the
slower of the two takes its full time, and the other adds the time of one chunk. Each of
n replicas sends the parts that others add up, and the sum of its own part: (n - 1) / n
of all bytes, twice.

Messages between stages, which use the same links, are not included; nor are parameters
of one dimension, which are few and travel in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from divisible.communication.wire import BLOCK, CHUNK, WINDOW, WIRE, WireDtype
from divisible.planning.coding import CodingRate, measure_coding
from divisible.planning.expected_costs import ExchangePlan
from divisible.planning.layer_cost import LayerCost
from divisible.planning.network import Links
from divisible.planning.profile import Profile
from divisible.schedules.actions import BACKWARD, KINDS, WEIGHT
from divisible.schedules.schedule import Schedule
from divisible.schedules.timeline import Timeline

_BYTES_OF_FLOAT32 = 4
#: Error feedback keeps earlier losses, and the losses under way, both in float32.
_RESIDUALS = 2
# Latencies of the ranks' first messages, before gradients are sent.
_OPENING = 1
_PHASES = 2


class Spans(NamedTuple):
    """The times at which the gradients of each stage are exchanged, in seconds.

    Attributes:
        start: Start of each stage's exchange, of shape (n_stages,).
        end: End of each stage's exchange, of the same shape; ``start`` where a stage
            has no parameters.
    """

    start: np.ndarray
    end: np.ndarray

    def of(self, stage: int) -> tuple[float, float]:
        """Returns start and end of a stage's exchange."""
        return float(self.start[stage]), float(self.end[stage])


class Wire(NamedTuple):
    """The way in which replicas exchange gradients, from a user's arguments.

    Attributes:
        dtype: The name of the dtype on the wire.
        error_feedback: Whether replicas keep the losses of encodings.
        coding: Speed of coding on a rank whose speed is 1; ``None`` for the rate of the
            profile, or a rate measured here if the profile has none.
    """

    dtype: str = "fp32"
    error_feedback: bool = False
    coding: CodingRate | None = None

    def exchange(self, replicas: int, profile: Profile) -> GradientExchange | None:
        """Returns the exchange between some replicas; ``None`` for one replica."""
        if replicas == 1:
            return None
        rate = self.coding or profile.coding.get(self.dtype)
        if rate is None:
            rate = measure_coding([self.dtype])[self.dtype]
        return GradientExchange(replicas, WIRE[self.dtype], rate, self.error_feedback)


@dataclass(frozen=True)
class GradientExchange:
    """An exchange between replicas: its bytes, seconds and memory.

    Attributes:
        replicas: Number of replicas, two or more.
        wire: The dtype on the wire.
        coding: Speed of coding on a rank whose speed is 1.
        error_feedback: Whether replicas keep the losses of encodings.
        links: The way from each rank of a pipeline to the same rank of the other
            replicas; ``None`` before :meth:`on`.
        speeds: Speeds of the ranks of a pipeline, of shape (n_ranks,);
            ``None`` before :meth:`on`.

    Example:
        >>> from divisible.communication.wire import WIRE
        >>> exchange = GradientExchange(2, WIRE['int8'], CodingRate(2e9, 4e9))
        >>> exchange.sent_bytes(2**20)      # codes, and a scale for each 256 of them
        1064960
    """

    replicas: int
    wire: WireDtype
    coding: CodingRate
    error_feedback: bool = False
    links: Links | None = field(default=None, compare=False)
    speeds: np.ndarray | None = field(default=None, compare=False)

    def on(self, links: Links, speeds: np.ndarray) -> GradientExchange:
        """Returns the exchange on the ranks of a pipeline, with their links and speeds.

        Args:
            links: The way from each rank to the same rank of the other replicas.
            speeds: Speeds of the ranks, of shape (n_ranks,).
        """
        return replace(self, links=links, speeds=speeds)

    def sent_bytes(self, n: int) -> int:
        """Returns the bytes that the replica with most sends of ``n`` elements.

        The part that it adds up is rounded up to whole blocks.
        """
        block = 1 if self.wire.name == "fp32" else BLOCK
        n_blocks = -(-n // block)
        # Its own part's sum goes to all others; the rest goes to the replicas that add
        # it up.
        own = min(n, -(-n_blocks // self.replicas) * block)
        rest = self._n_bytes(n) - self._n_bytes(own)
        return rest + (self.replicas - 1) * self._n_bytes(own)

    def buffer_bytes(self, n: int) -> int:
        """Returns the most bytes of messages while ``n`` elements are exchanged.

        For each chunk a replica holds the messages that it sends and receives, in
        either phase, its own part, and the part's sum.
        """
        n_chunks = -(-n // CHUNK)
        if n_chunks == 0:
            return 0
        others = self.replicas - 1
        per_chunk = self._n_bytes(-(-n // n_chunks)) / self.replicas
        return round(min(n_chunks, WINDOW) * per_chunk * (3 * others + 2))

    def with_residuals(self, profile: Profile) -> Profile:
        """Returns a profile that counts error feedback as a part of the optimizer."""
        if not self.error_feedback:
            return profile
        each = _RESIDUALS * _BYTES_OF_FLOAT32

        def keep(layer: LayerCost) -> LayerCost:
            residuals = round(each * layer.n_gradients)
            return replace(layer, optimizer_bytes=layer.optimizer_bytes + residuals)

        return replace(profile, layers=[keep(layer) for layer in profile.layers])

    def coding_seconds(self, n: float, speed: float = 1.0) -> float:
        """Returns the seconds that a rank computes for ``n`` elements."""
        return self.coding.seconds(n, self.replicas) / speed

    def seconds(
        self, n: int, bandwidth: float, latency: float, speed: float, overlap: bool
    ) -> float:
        """Returns the seconds of an exchange of ``n`` elements.

        Args:
            n: Number of elements.
            bandwidth: Bytes per second that the rank sends, and receives meanwhile.
            latency: Latency of a message, in seconds.
            speed: Speed of the rank.
            overlap: Whether chunks are coded while others travel.
        """
        if n == 0:
            return 0.0
        wire, coding = self.sent_bytes(n) / bandwidth, self.coding_seconds(n, speed)
        longer, shorter = max(wire, coding), min(wire, coding)
        if overlap:
            shorter /= -(-n // CHUNK)
        return longer + shorter + _PHASES * latency

    def least_seconds(self, schedule: Schedule, elements: Sequence[int]) -> np.ndarray:
        """Returns the least seconds of each rank's exchange after its last backward.

        Args:
            schedule: The schedule, which has the rank of each stage.
            elements: Elements of the parameters of each stage.

        Returns:
            Seconds of the stage that takes least, of shape (n_ranks,).
        """
        least = np.full(schedule.n_ranks, np.inf)
        seconds = self._stage_seconds(schedule, elements)
        np.minimum.at(least, list(schedule.stage_ranks), seconds)
        return least

    def spans(
        self, schedule: Schedule, timeline: Timeline, elements: Sequence[int]
    ) -> Spans:
        """Returns the times at which the gradients of each stage are exchanged.

        A rank exchanges one stage after the other, as they become ready. Coding while
        the rank still has to compute delays the computation, unless the rank waits
        anyway.

        Args:
            schedule: The schedule, which has the rank of each stage.
            timeline: The timeline of a simulated step.
            elements: Elements of the parameters of each stage.
        """
        links, speeds = self.links, self.speeds
        ready = _ready(schedule, timeline)
        seconds = self._stage_seconds(schedule, elements)
        start, end = ready.copy(), ready.copy()
        for rank in range(schedule.n_ranks):
            stages = [s for s in schedule.rank_stages(rank) if elements[s]]
            stages.sort(key=lambda s: ready[s])
            last = _last(timeline, rank)
            if not links.overlap:
                ready[stages] = last
            early = [s for s in stages if ready[s] < last]
            coding = sum(self.coding_seconds(elements[s], speeds[rank]) for s in early)
            if early:
                coding -= _idle(timeline, rank, ready[early[0]])
            free, opening = 0.0, _OPENING * links.latency[rank]
            for s in stages:
                at = ready[s] if s in early else ready[s] + max(coding, 0.0)
                start[s] = max(at, free)
                end[s] = free = start[s] + opening + seconds[s]
                opening = 0.0
        return Spans(start, end)

    def expected(
        self,
        schedule: Schedule,
        timeline: Timeline,
        spans: Spans,
        elements: Sequence[int],
    ) -> ExchangePlan | None:
        """Returns the costs of the exchange in a step, a part of which is hidden.

        Args:
            schedule: The schedule, which has the rank of each stage.
            timeline: The timeline of a simulated step.
            spans: From :meth:`spans`.
            elements: Elements of the parameters of each stage.

        Returns:
            ExchangePlan or None: The costs; ``None`` if no stage has parameters.
        """
        if not any(elements):
            return None
        ranks = np.array(schedule.stage_ranks)

        def of_ranks(values: Sequence[float]) -> np.ndarray:
            return np.bincount(ranks, weights=values, minlength=schedule.n_ranks)

        sent = of_ranks([self.sent_bytes(n) for n in elements])
        last = ranks[np.where(elements, spans.end, 0.0).argmax()]
        seconds = float(of_ranks(spans.end - spans.start)[last])
        after = max(0.0, float(spans.end.max()) - timeline.makespan)
        return ExchangePlan(
            sent_bytes=int(sent.max()),
            seconds=seconds,
            coding_seconds=self.coding_seconds(
                float(of_ranks(elements)[last]), float(self.speeds[last])
            ),
            hidden_seconds=max(0.0, seconds - after),
        )

    def _stage_seconds(self, schedule: Schedule, elements: Sequence[int]) -> np.ndarray:
        """Returns the seconds of each stage's exchange on its rank."""
        links, speeds = self.links, self.speeds
        return np.array(
            [
                self.seconds(
                    n,
                    links.bandwidth[rank],
                    links.latency[rank],
                    speeds[rank],
                    links.overlap,
                )
                for n, rank in zip(elements, schedule.stage_ranks)
            ]
        )

    def _n_bytes(self, n: int) -> int:
        return self.wire.n_bytes(n, BLOCK)


def _ready(schedule: Schedule, timeline: Timeline) -> np.ndarray:
    """Returns when the last microbatch has added to the gradients of each stage."""
    adds = (timeline.category == BACKWARD) | (timeline.category == WEIGHT)
    ready = np.zeros(schedule.n_stages)
    np.maximum.at(ready, timeline.stage[adds], timeline.end[adds])
    return ready


def _last(timeline: Timeline, rank: int) -> float:
    """Returns when a rank has computed all."""
    first, end = timeline.offsets[rank : rank + 2]
    return float(timeline.end[first:end].max(initial=0.0))


def _idle(timeline: Timeline, rank: int, since: float) -> float:
    """Returns how long a rank waits between a moment and the end of its last action."""
    first, end = timeline.offsets[rank : rank + 2]
    starts, ends = timeline.start[first:end], timeline.end[first:end]
    later = (timeline.category[first:end] < len(KINDS)) & (starts >= since)
    return float(ends.max(initial=since) - since - (ends - starts)[later].sum())
