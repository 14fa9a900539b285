"""One configuration, cut and costed: stages, microbatches, schedule, recomputation.

The search over configurations is in `divisible.planning.search`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from divisible.planning.exchange_plan import ExchangePlan
from divisible.planning.gradient_exchange import GradientExchange, Wire
from divisible.planning.interpolation import interpolate
from divisible.planning.machine import Network, PerRank, spread_memory, spread_speeds
from divisible.planning.partition import MemoryLimitError, describe, find_cuts
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile
from divisible.planning.setting import Setting
from divisible.planning.unequal_replicas import (
    microbatches_of_largest,
    parts_by_speed,
    relative_loads,
)
from divisible.planning.units import count, format_bytes
from divisible.schedules.actions import BACKWARD, FORWARD, INPUT
from divisible.schedules.catalogue import create
from divisible.schedules.costs import Costs
from divisible.schedules.recomputation import recompute
from divisible.schedules.schedule import Schedule

#: Predictions of equal time differ by rounding.
SAME = 1 + 1e-6
#: Which part of its memory the first stage of a rank gets that has several, if the cut
#: that is best without a limit does not fit.
SHARES = (0.5, 0.375, 0.625, 0.25, 0.75, 0.125, 0.875)
# How often parts of replicas and the cut are found for each other.
_ROUNDS = 2
#: How far a cut, or it and the next one, is moved to see whether that is faster.
MOVES = (
    *((sign * distance,) for distance in (1, 2, 3, 4) for sign in (-1, 1)),
    *itertools.product((-1, 1), repeat=2),
)


class Configuration(NamedTuple):
    """One way to run a model, apart from where it is cut."""

    replicas: int
    n_ranks: int
    stages_per_rank: int
    schedule: str
    n_microbatches: int
    checkpoint: str

    @property
    def n_stages(self) -> int:
        """The number of stages of a replica."""
        return self.n_ranks * self.stages_per_rank

    def __str__(self) -> str:
        words = [count(self.n_stages, "stage")]
        if self.stages_per_rank > 1:
            words[0] += f" on {count(self.n_ranks, 'rank')}"
        if self.replicas > 1:
            words.insert(0, count(self.replicas, "replica"))
        words += [count(self.n_microbatches, "microbatch"), self.schedule]
        if self.checkpoint != "never":
            words.append(f"recomputation {self.checkpoint}")
        return ", ".join(words)


class Outcome(NamedTuple):
    """The outcome of a simulated step of a configuration.

    Attributes:
        seconds: Of the step, with what is not hidden of the exchange of gradients.
        busy: Seconds that the busiest rank computes.
        bubble: The share of the step that ranks wait, on average.
        held: Bytes of microbatches in flight, on the rank with most.
        in_flight: Microbatches in flight, on the rank with most.
        exchange: What the exchange costs; ``None`` without replicas.
    """

    seconds: float
    busy: float
    bubble: float
    held: int
    in_flight: int
    exchange: ExchangePlan | None


@dataclass
class Candidate:
    """A configuration that fits, on its way through the search.

    Attributes:
        configuration: What it is.
        cuts: Where it is cut.
        bound: Seconds that a step takes at least.
        outcome: Of the simulation, if it has been simulated.
        parts: Samples of each replica; ``None`` for equal ones.
    """

    configuration: Configuration
    cuts: Sequence[int]
    bound: float
    outcome: Outcome | None = None
    parts: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.parts is None:
            return str(self.configuration)
        return f"{self.configuration}, shares {':'.join(map(str, self.parts))}"


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
    ) -> None:
        self.profiles = profiles
        self.network = Network() if network is None else network
        self.batch = batch
        self.wire = wire
        self.memory = spread_memory(memory, ranks)
        self.speeds = spread_speeds(speeds, ranks)
        # Too few of them are refused before the search.
        self.network.edges(ranks)
        self.sized: dict[tuple[int, bool], Profile] = {}

    def candidates(self, configuration: Configuration) -> list[Candidate]:
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
        setting = self._setting(candidate.configuration, candidate.parts)
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
            _check_memory(cuts, setting, memory)
            bound = lower_bound(
                setting.schedule, setting.costs(cuts), setting.least_after(cuts)
            )
            # Costs and schedules of thousands of configurations would take gigabytes.
            return Candidate(configuration, cuts, bound, parts=parts)

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
            return _fastest_that_fits(within, memory, at, error)

    def plan(self, candidate: Candidate) -> Plan:
        """Returns a candidate's plan, with what its stages cost."""
        configuration = candidate.configuration
        setting = self._setting(configuration, candidate.parts)
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
        )

    def simulate(self, candidate: Candidate) -> Outcome:
        """Simulates a step."""
        setting = self._setting(candidate.configuration, candidate.parts)
        cuts = candidate.cuts
        timeline = setting.simulate(cuts)
        spans = setting.spans(cuts, timeline)
        seconds = timeline.makespan
        if spans is not None:
            seconds = max(seconds, float(spans.end.max()))
        return Outcome(
            seconds=seconds,
            busy=float(timeline.busy.max()),
            bubble=float(timeline.bubble.mean()),
            held=int(timeline.peak_memory.max()),
            in_flight=int(timeline.peak_in_flight.max()),
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

    def _setting(
        self, configuration: Configuration, parts: tuple[int, ...] | None
    ) -> Setting:
        replicas, n_ranks, _, name, m, checkpoint = configuration
        exchange = self.wire.exchange(replicas, self.profiles[-1])
        # The first microbatches are the largest.
        sizes = microbatches_of_largest(parts, self.batch, replicas, m)
        loads = None
        if parts is not None:
            loads = relative_loads(parts, m, lambda n: self._at(n, exchange).seconds)
        return Setting.of(
            _create(name, configuration.n_stages, m, n_ranks, checkpoint),
            [self._at(size, exchange) for size in sizes],
            self.network,
            self._speeds(configuration).reshape(-1),
            exchange,
            loads,
        )

    def _at(self, size: int, exchange: GradientExchange | None) -> Profile:
        key = size, exchange is not None
        if key not in self.sized:
            profile = interpolate(self.profiles, size)
            if exchange is not None:
                profile = exchange.with_residuals(profile)
            self.sized[key] = profile
        return self.sized[key]

    def _memory(self, configuration: Configuration) -> np.ndarray:
        """Returns for each place in a pipeline the least that a replica has there."""
        replicas, n_ranks, *_ = configuration
        return self.memory[: replicas * n_ranks].reshape(replicas, -1).min(axis=0)


def busy_seconds(schedule: Schedule, costs: Costs) -> np.ndarray:
    """Returns how long each rank computes in a step."""
    durations = costs.durations(schedule.n_stages, schedule.n_microbatches)
    return np.bincount(
        np.array(schedule.stage_ranks)[schedule.stage],
        weights=durations[schedule.kind, schedule.stage, schedule.microbatch],
    )


def lower_bound(schedule: Schedule, costs: Costs, after: np.ndarray) -> float:
    """Returns what a step takes at least.

    A rank waits for the first microbatch to come through the stages before its own.
    It computes all of its own; then, unless it ends with weight gradients, the last
    backward has to go through the stages before. Meanwhile it exchanges gradients.

    Args:
        schedule: What the ranks run.
        costs: Of the stages.
        after: Seconds that each rank takes at least after its last backward.
    """
    d, m = schedule.n_stages, schedule.n_microbatches
    durations = costs.durations(d, m)
    forward, whole = durations[FORWARD], durations[BACKWARD]
    ranks = np.array(schedule.stage_ranks)
    split = bool((schedule.kind == INPUT).any())
    busy = busy_seconds(schedule, costs)
    # A rank is on its way in when its first stage is reached, and out after that one.
    entry = np.concatenate([[0.0], np.cumsum(forward.min(axis=1))])[:-1]
    leave = np.concatenate([[0.0], np.cumsum(whole.min(axis=1))])[:-1]
    firsts = np.array([ranks.tolist().index(r) for r in range(schedule.n_ranks)])
    ways = entry[firsts] + np.maximum(after, 0.0 if split else leave[firsts])
    transfer, _ = costs.edges(d)
    return float(max((busy + ways).max(), m * transfer.max(initial=0.0)))


def _fastest_that_fits(
    cut: Callable[[np.ndarray], Candidate],
    memory: np.ndarray,
    at: np.ndarray,
    otherwise: MemoryLimitError,
) -> Candidate:
    """Cuts for several ways in which the stages of a rank may share its memory.

    Args:
        cut: Cuts for limits of all stages.
        memory: Of the ranks.
        at: The rank of each stage.
        otherwise: Is raised if nothing fits.
    """
    fitting = []
    for share in SHARES:
        with contextlib.suppress(MemoryLimitError):
            fitting.append(cut(_shared(memory, at, share)))
    if not fitting:
        raise otherwise
    return min(fitting, key=lambda candidate: candidate.bound)


def _shared(memory: np.ndarray, at: np.ndarray, share: float) -> np.ndarray:
    """Shares the memory of ranks that have several stages each.

    Args:
        memory: Of the ranks.
        at: The rank of each stage.
        share: The part of the first stage of each rank; the others have equal ones.

    Returns:
        Bytes of shape (n_stages,).
    """
    per_rank = len(at) // len(memory)
    parts = np.full(len(at), (1 - share) / (per_rank - 1))
    parts[np.unique(at, return_index=True)[1]] = share
    return memory[at] * parts


def _check_memory(cuts: Sequence[int], setting: Setting, memory: np.ndarray) -> None:
    """Refuses what does not fit when the stages of a rank share its memory."""
    needed = setting.rank_bytes(cuts)
    lacks = needed - memory
    rank = int(lacks.argmax())
    if lacks[rank] > 0:
        raise MemoryLimitError(
            f"cut at {cuts}, rank {rank} with the stages"
            f" {setting.schedule.rank_stages(rank)} needs {format_bytes(needed[rank])},"
            f" {format_bytes(lacks[rank])} more than its {format_bytes(memory[rank])}"
        )


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
