"""One configuration, cut and costed: stages, microbatches, schedule, recomputation.

The search over configurations is in `divisible.planning.search`.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from divisible.planning.bounds import busy_seconds, lower_bound
from divisible.planning.conditions import Conditions, Machine
from divisible.planning.configuration import Candidate, Configuration, Outcome
from divisible.planning.disk import (
    Disk,
    segment_bytes,
    streamed_cost,
    streamed_profile,
)
from divisible.planning.gradient_exchange import GradientExchange, Wire
from divisible.planning.interpolation import interpolate
from divisible.planning.machine import Network, PerRank, spread_memory, spread_speeds
from divisible.planning.partition import MemoryLimitError, describe, find_cuts
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile, named_files
from divisible.planning.setting import Setting
from divisible.planning.shared_memory import check_memory, fastest_that_fits
from divisible.planning.unequal_replicas import parts_by_speed
from divisible.schedules.absences import absences
from divisible.schedules.catalogue import create
from divisible.schedules.recomputation import recompute
from divisible.schedules.schedule import Schedule

#: Predictions of equal time differ by rounding.
SAME = 1 + 1e-6
# How often parts of replicas and the cut are found for each other.
_ROUNDS = 2
#: How far a cut, or it and the next one, is moved to see whether that is faster.
MOVES = (
    *((sign * distance,) for distance in (1, 2, 3, 4) for sign in (-1, 1)),
    *itertools.product((-1, 1), repeat=2),
)


class Configurations:
    """Cuts a model for one configuration after another.

    The arguments are those of :func:`divisible.planning.search.best_plan`.
    """

    def __init__(
        self,
        profiles: Sequence[Profile],
        ranks: int,
        memory: PerRank | None,
        network: Network | None,
        batch: int,
        speeds: PerRank | None,
        wire: Wire,
        disk: Disk | None = None,
    ) -> None:
        self.profiles = profiles
        self.disk = disk
        self.network = Network() if network is None else network
        self.batch = batch
        self.wire = wire
        self.memory = spread_memory(memory, ranks)
        self.speeds = spread_speeds(speeds, ranks)
        # Too few of them are refused before the search.
        self.network.edges(ranks)
        self.conditions = Conditions(
            Machine(ranks, memory, self.network, speeds, disk),
            batch=batch,
            profiles=named_files(profiles),
        )
        self.sized: dict[tuple, Profile] = {}

    def candidates(self, configuration: Configuration) -> list[Candidate]:
        """Cuts the model for a configuration, with what does not fit on disk.

        Args:
            configuration: What it is cut for.

        Raises:
            MemoryLimitError: If it does not fit, with a disk or without one.
        """
        if self.disk is None:
            return self._shared_out(configuration)
        found, reason = [], None
        try:
            found += self._shared_out(configuration)
        except MemoryLimitError as error:
            reason = error
        if reason is not None or self._is_bound(configuration):
            found += self._with_disk(configuration)
        if not found:
            raise reason
        return found

    def _is_bound(self, configuration: Configuration) -> bool:
        """Returns whether the cut that is best without a limit does not fit."""
        setting = self._setting(configuration, None)
        stages = setting.stages()
        cuts = find_cuts(stages, np.full(stages.n_stages, np.inf))
        return bool((setting.rank_bytes(cuts) > self._memory(configuration)).any())

    def _with_disk(self, configuration: Configuration) -> list[Candidate]:
        """Cuts for microbatches that wait on disk, and for weights that are there."""
        found, bases = [], [configuration]
        schedule = self._setting(configuration, None).schedule
        if self.network.overlap and absences(schedule).leaves.size:
            holding = configuration._replace(hold_in="disk")
            try:
                found += self._shared_out(holding)
            except MemoryLimitError:
                bases.append(holding)
        for base in bases:
            found += self._streamed(base)
        return found

    def _streamed(self, configuration: Configuration) -> list[Candidate]:
        """Cuts for the fewest streamed layers with which it fits, if it does."""
        order = self._streaming_order(configuration)
        found: list[Candidate] = []
        # So many do not suffice, and so many do.
        few, enough = 0, len(order) + 1
        n = len(order)
        while few < n < enough:
            streamed = tuple(sorted(order[:n]))
            try:
                found = self._shared_out(configuration._replace(streamed=streamed))
                enough = n
            except MemoryLimitError:
                if n == len(order):
                    return []
                few = n
            n = (few + enough) // 2
        return found

    def _streaming_order(self, configuration: Configuration) -> list[int]:
        """Returns layers by what they take longer on disk for a byte that they free."""
        plain = self._setting(configuration, None).largest
        m = configuration.n_microbatches
        losses = {}
        for i, cost in enumerate(plain.layers):
            if cost.streamable_bytes:
                slow = streamed_cost(cost, self.disk, m)
                freed = cost.streamable_bytes / cost.parameter_bytes
                freed *= 2 * cost.parameter_bytes + cost.optimizer_bytes
                losses[i] = (slow.seconds - cost.seconds) / freed, -freed
        return sorted(losses, key=losses.__getitem__)

    def _shared_out(self, configuration: Configuration) -> list[Candidate]:
        """Cuts the model for a configuration, and shares a minibatch out to replicas.

        Where these are of unequal speed, parts by speed are found for a cut, and a cut
        for the parts, from equal parts on and from parts by all speeds of a replica.
        Whether the best of these is faster than equal parts depends on microbatches,
        which have whole samples: it takes a simulation.

        Args:
            configuration: What it is cut for.

        Raises:
            MemoryLimitError: If it does not fit.
        """
        equal = self.candidate(configuration)
        speeds = self._speeds(configuration)
        n_samples = self.batch // configuration.replicas
        if n_samples < 1 or (speeds == speeds[0]).all():
            return [equal]
        unequal = []
        work = [self._work(equal), np.full(speeds.shape[1], 1 / speeds.shape[1])]
        by_all = np.repeat(speeds.mean(axis=1)[:, None], speeds.shape[1], axis=1)
        for pace, each in zip((speeds, by_all), work):
            for _ in range(_ROUNDS):
                parts = tuple(parts_by_speed(pace, each, self.batch))
                try:
                    other = self.candidate(configuration, parts=parts)
                except MemoryLimitError:
                    break
                unequal += [other] * (other.parts is not None)
                pace, each = speeds, self._work(other)
        return [equal, *sorted(unequal, key=lambda other: other.bound)[:1]]

    def _work(self, candidate: Candidate) -> np.ndarray:
        """Returns what each rank of a pipeline has to compute, at speed 1."""
        setting = self._setting_of(candidate)
        schedule, costs = setting.schedule, setting.costs(candidate.cuts)
        return busy_seconds(schedule, costs) * setting.computing

    def candidate(
        self,
        configuration: Configuration,
        cuts: Sequence[int] | None = None,
        parts: tuple[int, ...] | None = None,
    ) -> Candidate:
        """Cuts the model for a configuration, and given parts of a minibatch.

        Args:
            configuration: What it is cut for.
            cuts: Where; so that the slowest stage is as fast as possible by default.
            parts: Samples of each replica; equal ones by default.

        Raises:
            MemoryLimitError: If it does not fit. Where ranks have several stages, it
                is cut for several ways to share their memory, which are not all.
        """
        if parts is not None and max(parts) - min(parts) <= 1:
            parts = None
        setting = self._setting(configuration, parts)
        memory = self._memory(configuration)

        def costed(cuts: Sequence[int]) -> Candidate:
            check_memory(cuts, setting, memory)
            chosen, on_disk = setting, None
            if setting.on_disk is not None:
                # Only on those that have no room for it.
                chosen = setting._replace(on_disk=None)
                on_disk = tuple((chosen.rank_bytes(cuts) > memory).tolist())
                chosen = setting._replace(on_disk=on_disk)
            bound = lower_bound(
                setting.schedule, chosen.costs(cuts), setting.least_after(cuts)
            )
            # Costs and schedules of thousands of configurations would take gigabytes.
            return Candidate(configuration, cuts, bound, parts=parts, on_disk=on_disk)

        if cuts is not None:
            return costed(cuts)
        stages = setting.stages()

        def within(limits: np.ndarray) -> Candidate:
            return costed(find_cuts(stages, limits))

        if configuration.stages_per_rank == 1:
            return within(memory)
        try:
            return within(np.full(stages.n_stages, np.inf))
        except MemoryLimitError as error:
            at = np.array(setting.schedule.stage_ranks)
            return fastest_that_fits(within, memory, at, error)

    def plan(self, candidate: Candidate) -> Plan:
        """Returns a candidate's plan, with what its stages cost."""
        configuration = candidate.configuration
        setting = self._setting_of(candidate)
        stages = setting.stages()
        # Stages that share the memory of a rank have no limit of their own.
        is_shared = configuration.stages_per_rank > 1
        limits = self._memory(configuration)
        if is_shared:
            limits = np.full(stages.n_stages, np.inf)
        has_replicas, outcome = configuration.replicas > 1, candidate.outcome
        return Plan(
            candidate.cuts,
            n_microbatches=configuration.n_microbatches,
            schedule=configuration.schedule,
            checkpoint=configuration.checkpoint,
            replicas=configuration.replicas,
            stages_per_rank=configuration.stages_per_rank,
            layers=tuple(layer.name for layer in setting.largest.layers),
            stages=describe(stages, candidate.cuts, limits),
            wire_dtype=self.wire.dtype if has_replicas else None,
            error_feedback=has_replicas and self.wire.error_feedback,
            exchange=None if outcome is None else outcome.exchange,
            shares=candidate.parts,
            hold_in=tuple(
                "disk" if is_there else "memory" for is_there in candidate.on_disk or ()
            ),
            streamed=configuration.streamed,
            step_seconds=None if outcome is None else outcome.seconds,
            bubble=None if outcome is None else outcome.bubble,
            conditions=replace(
                self.conditions,
                coding={self.wire.dtype: setting.exchange.coding}
                if has_replicas
                else {},
            ),
        )

    def simulate(self, candidate: Candidate) -> Outcome:
        """Simulates a step."""
        setting = self._setting_of(candidate)
        cuts = candidate.cuts
        timeline = setting.simulate(cuts)
        spans = setting.spans(cuts, timeline)
        seconds = timeline.makespan
        if spans is not None:
            seconds = max(seconds, float(spans.end.max()))
        return Outcome(
            seconds=seconds,
            busy=float(timeline.busy.max()),
            # Of all ranks until the last exchange has ended.
            bubble=float(1 - timeline.busy.mean() / seconds),
            held=int(timeline.peak_memory.max()),
            in_flight=float(timeline.peak_in_flight.max()),
            exchange=setting.exchange_plan(cuts, timeline, spans),
        )

    def improve(self, candidate: Candidate, effort: int) -> Candidate:
        """Moves the cuts of a simulated candidate as long as that makes it faster.

        The slowest stage is not all that counts: until the pipeline is full, and when
        it empties, and wherever a rank waits for an answer, messages count as well.

        Args:
            candidate: With its outcome.
            effort: How much may be tried: layers times stages, and actions.

        Returns:
            Candidate: The best found, with its outcome.
        """
        configuration = candidate.configuration
        n_stages, n_layers = configuration.n_stages, candidate.cuts[-1]
        each = n_stages * (n_layers + 3 * configuration.n_microbatches)
        before = None
        while candidate is not before:
            before = candidate
            for k, move in itertools.product(range(1, n_stages), MOVES):
                if effort < each:
                    return candidate
                cuts = list(candidate.cuts)
                for i, distance in enumerate(move, k):
                    cuts[i] += distance
                is_cut = cuts[-1] == n_layers and all(map(operator.lt, cuts, cuts[1:]))
                if is_cut:
                    effort -= each
                    candidate = self._faster(candidate, cuts)
        return candidate

    def _faster(self, candidate: Candidate, cuts: Sequence[int]) -> Candidate:
        """Returns the candidate, or one with these cuts if that is faster and fits."""
        seconds = candidate.outcome.seconds / SAME
        try:
            other = self.candidate(candidate.configuration, cuts, candidate.parts)
        except MemoryLimitError:
            return candidate
        if other.bound >= seconds:
            return candidate
        other.outcome = self.simulate(other)
        return other if other.outcome.seconds < seconds else candidate

    def _speeds(self, configuration: Configuration) -> np.ndarray:
        """Returns the speeds of the ranks, a row for each replica."""
        replicas, n_ranks, *_ = configuration
        return self.speeds[: replicas * n_ranks].reshape(replicas, n_ranks)

    def _setting_of(self, candidate: Candidate) -> Setting:
        setting = self._setting(candidate.configuration, candidate.parts)
        return setting._replace(on_disk=candidate.on_disk)

    def _setting(
        self, configuration: Configuration, parts: tuple[int, ...] | None
    ) -> Setting:
        replicas, n_ranks, _, name, m, checkpoint, hold_in, streamed = configuration
        exchange = self.wire.exchange(replicas, self.profiles[-1])
        segment = segment_bytes(float(self._memory(configuration).min()))
        setting = Setting.of(
            _create(name, configuration.n_stages, m, n_ranks, checkpoint),
            lambda size: self._at(size, exchange, streamed, m, segment),
            self.batch,
            parts,
            self.network,
            self._speeds(configuration).reshape(-1),
            exchange,
        )
        on_disk = (True,) * n_ranks if hold_in == "disk" else None
        return setting._replace(disk=self.disk, on_disk=on_disk)

    def _at(
        self,
        size: int,
        exchange: GradientExchange | None,
        streamed: tuple[int, ...],
        n_microbatches: int,
        segment: float,
    ) -> Profile:
        key: tuple = size, exchange is not None
        if streamed:
            key += streamed, n_microbatches, segment
        if key not in self.sized:
            profile = interpolate(self.profiles, size)
            profile = streamed_profile(
                profile,
                streamed,
                self.disk,
                n_microbatches,
                segment,
                has_replicas=exchange is not None,
            )
            if exchange is not None:
                profile = exchange.with_residuals(profile)
            self.sized[key] = profile
        return self.sized[key]

    def _memory(self, configuration: Configuration) -> np.ndarray:
        """Returns for each place in a pipeline the least that a replica has there."""
        replicas, n_ranks, *_ = configuration
        return self.memory[: replicas * n_ranks].reshape(replicas, -1).min(axis=0)


# Configurations that follow each other often have the same one, or one that differs in
# what is recomputed.
@functools.lru_cache(maxsize=16)
def _create(
    name: str, n_stages: int, n_microbatches: int, n_ranks: int, checkpoint: str
) -> Schedule:
    if checkpoint == "never":
        return create(name, n_stages, n_microbatches, n_ranks)
    without = _create(name, n_stages, n_microbatches, n_ranks, "never")
    return recompute(without, checkpoint)
