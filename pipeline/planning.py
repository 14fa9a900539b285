"""Chooses stages, microbatches, schedule and recomputation together.

Every combination is cut optimally. What its busiest rank has to compute is a bound on
its step, so that only those are simulated that could still win::

    combination -> partition -> does not fit: out
                             -> bound        -> simulate in the order of the bounds,
                                                until the bound exceeds the best
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from divisible.layer_costs import Profile, interpolate, sort_profiles
from divisible.partitioning import MemoryLimitError, partition
from divisible.plan import Alternative, Plan, StagePlan
from divisible.stage_costs import CHECKPOINTS, Network, PerRank, spread
from divisible.units import format_bytes, format_seconds
from pipeline import schedules as generators
from pipeline.prediction import (
    edges,
    fixed_memory,
    microbatch_sizes,
    run,
    stage_costs,
)
from pipeline.schedule import Schedule
from pipeline.simulator import Costs
from pipeline.timeline import Timeline

#: What is tried by default, and the number of stages that it puts on a rank.
SCHEDULES = {"1f1b": 1, "gpipe": 1, "zb_h1": 1, "interleaved": 2, "zb_v": 2}
_CHUNKED = {"interleaved": 2, "looped_bfs": 2, "zb_v": 2}

# Predictions of equal time differ by rounding.
_SAME = 1 + 1e-6
# How many of the alternatives are kept, besides the best one of every kind.
_KEPT = 10


class Combination(NamedTuple):
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
        words = [f"{self.n_stages} stage{'s' * (self.n_stages > 1)}"]
        if self.replicas > 1:
            words.insert(0, f"{self.replicas} replicas")
        words += [f"{self.n_microbatches} microbatches", self.schedule]
        if self.checkpoint != "never":
            words.append(f"recomputation {self.checkpoint}")
        return ", ".join(words)


@dataclass
class _Candidate:
    """A combination that fits, on its way through the search."""

    combination: Combination
    plan: Plan
    schedule: Schedule
    costs: Costs
    bound: float
    gradient_seconds: np.ndarray
    seconds: float = np.inf
    timeline: Timeline | None = None


def best_plan(
    profile: Profile | Sequence[Profile],
    ranks: int,
    memory: PerRank | None = None,
    network: Network | None = None,
    *,
    batch: int | None = None,
    microbatches: Sequence[int] | None = None,
    schedules: Sequence[str] = tuple(SCHEDULES),
    checkpoints: Sequence[str] = CHECKPOINTS,
    max_replicas: int = 1,
    speeds: PerRank | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Finds the fastest way to run a model on some ranks.

    Searches the number of stages, of microbatches and of replicas, the schedule and
    the recomputation. Each combination is cut optimally (:func:`divisible.partition`)
    and simulated (:func:`pipeline.simulate`) unless it does not fit or cannot win. The
    step is forward and backward of a minibatch and the sum of the replicas' gradients,
    by rings, after them.

    Fewer ranks than there are may be faster; the first ones are used. With replicas,
    neighbouring ranks make a pipeline.

    Args:
        profile: The costs of the layers. A profile at one size of microbatch is scaled
            in proportion, which flatters small microbatches; give several, such as at
            the whole minibatch, a quarter and a sixteenth of it.
        ranks: Number of ranks.
        memory: Bytes that a rank may use; one number for all or one for each.
        network: The links between ranks; infinitely fast by default.
        batch: Samples of the minibatch; those of the largest profile by default.
        microbatches: The numbers of microbatches to try; by default for each size of
            microbatch the least number that gives it.
        schedules: The names of those to try.
        checkpoints: The ways to recompute to try.
        max_replicas: The most replicas to try.
        speeds: Of the ranks, relative to that of the profile.
        progress: Called with the number of combinations seen and that of all.

    Returns:
        Plan: With ``step_seconds``, and with the ``alternatives`` and why they lost.

    Raises:
        MemoryLimitError: If nothing fits.
        ValueError: If an argument is out of range.

    Example:
        >>> from divisible.layer_costs import LayerCost
        >>> layers = [LayerCost(1.0, 1.0, 1.0, output_bytes=10**6)] * 8
        >>> plan = best_plan(
        ...     Profile(layers, n_samples=8), 4, network=Network(latency=0.1),
        ...     microbatches=[1, 2, 4, 8], schedules=['1f1b'])
        >>> plan.cuts, plan.n_microbatches, round(plan.step_seconds, 2)
        ([0, 2, 4, 6, 8], 8, 9.85)
    """
    profiles = sort_profiles([profile] if isinstance(profile, Profile) else profile)
    batch = profiles[-1].n_samples if batch is None else batch
    _check(ranks, batch, schedules, checkpoints, max_replicas)
    search = _Search(profiles, ranks, memory, network, batch, speeds)
    combinations = list(
        _combinations(
            ranks,
            len(profiles[0]),
            batch,
            microbatches,
            schedules,
            checkpoints,
            max_replicas,
        )
    )
    if not combinations:
        raise ValueError(
            f"no combination of {ranks} ranks, {len(profiles[0])} layers, {batch}"
            f" samples, microbatches {microbatches} and schedules"
            f" {', '.join(schedules)} can run"
        )
    fitting, out = [], []
    for done, combination in enumerate(combinations, 1):
        try:
            fitting.append(search.candidate(combination))
        except MemoryLimitError as error:
            out.append((combination, str(error)))
        if progress is not None:
            progress(done, len(combinations))
    if not fitting:
        combination, reason = max(out, key=lambda entry: entry[0].n_stages)
        raise MemoryLimitError(
            f"none of {len(out)} combinations fits into the memory of the ranks. With"
            f" {combination}: {reason}"
        )
    best = _simulate(fitting, search.network)
    return replace(
        best.plan,
        step_seconds=best.seconds,
        alternatives=_alternatives(best, fitting, out),
    )


class _Search:
    """What all combinations have in common."""

    def __init__(self, profiles, ranks, memory, network, batch, speeds) -> None:
        self.profiles = profiles
        self.network = Network() if network is None else network
        self.batch = batch
        self.memory = spread("memory", np.inf if memory is None else memory, ranks)
        self.speeds = spread("speeds", 1.0 if speeds is None else speeds, ranks)
        self.bandwidth, self.latency = self.network.edges(ranks)
        self.sized: dict[int, Profile] = {}
        self.schedules: dict[tuple, Schedule] = {}

    def candidate(self, combination: Combination) -> _Candidate:
        """Cuts the model for a combination.

        Raises:
            MemoryLimitError: If it does not fit.
        """
        replicas, n_ranks, per_rank, name, m, checkpoint = combination
        sizes = microbatch_sizes(-(-self.batch // replicas), m)
        profile = self._at(max(sizes))
        schedule = self._schedule(name, combination.n_stages, m, n_ranks)
        memory, speeds, network = self._slowest_replica(replicas, n_ranks)
        at = np.array(schedule.stage_ranks)
        links = edges(network, schedule)
        options = {"speeds": speeds[at], "network": links, "checkpoint": checkpoint}
        if per_rank == 1:
            plan = partition(
                profile,
                n_ranks,
                memory=memory,
                schedule=name,
                n_microbatches=m,
                **options,
            )
        else:
            plan = self._cut_for_several(profile, schedule, memory[at], options)
        plan = replace(
            plan,
            n_microbatches=m,
            schedule=name,
            replicas=replicas,
            stages_per_rank=per_rank,
        )
        costs = stage_costs(plan, schedule, self.profiles, sizes, network, speeds)
        gradients = self._gradient_seconds(plan, schedule, replicas)
        bound = _bound(schedule, costs) + gradients.min()
        candidate = _Candidate(combination, plan, schedule, costs, bound, gradients)
        if per_rank > 1:
            _check_memory(candidate, profile, memory)
        return candidate

    def _at(self, size: int) -> Profile:
        if size not in self.sized:
            self.sized[size] = interpolate(self.profiles, size)
        return self.sized[size]

    def _schedule(self, *key) -> Schedule:
        if key not in self.schedules:
            self.schedules[key] = generators.create(*key)
        return self.schedules[key]

    def _slowest_replica(
        self, replicas: int, n_ranks: int
    ) -> tuple[np.ndarray, np.ndarray, Network]:
        """Returns for each rank of a pipeline the least that a replica has there."""

        def rows(values: np.ndarray, width: int) -> np.ndarray:
            starts = np.arange(replicas)[:, None] * n_ranks
            return values[starts + np.arange(width)]

        return (
            rows(self.memory, n_ranks).min(axis=0),
            rows(self.speeds, n_ranks).min(axis=0),
            Network(
                rows(self.bandwidth, n_ranks - 1).min(axis=0),
                rows(self.latency, n_ranks - 1).max(axis=0),
                self.network.overlap,
            ),
        )

    def _cut_for_several(
        self, profile: Profile, schedule: Schedule, memory: np.ndarray, options: dict
    ) -> Plan:
        """Cuts for several stages on a rank, which share its memory equally.

        If nothing fits so, they may share it otherwise: it is cut without a limit, and
        looked at again when it has been.
        """
        held = schedule.validate()
        pending = np.array(held.pending)[list(schedule.stage_ranks)]
        limits = memory / (schedule.n_stages / schedule.n_ranks)
        for limit in (limits, None):
            try:
                return partition(
                    profile,
                    schedule.n_stages,
                    memory=limit,
                    in_flight=held.stage_in_flight,
                    pending=pending,
                    n_microbatches=schedule.n_microbatches,
                    **options,
                )
            except MemoryLimitError:
                continue
        raise AssertionError("a cut without a limit always fits")

    def _gradient_seconds(
        self, plan: Plan, schedule: Schedule, replicas: int
    ) -> np.ndarray:
        """Returns how long each rank takes to add its gradients to the replicas'."""
        if replicas == 1:
            return np.zeros(schedule.n_ranks)
        sizes = np.add.reduceat(
            self.profiles[0].column("parameter_bytes"), plan.cuts[:-1]
        )
        per_rank = np.zeros(schedule.n_ranks)
        np.add.at(per_rank, list(schedule.stage_ranks), sizes)
        used = replicas * schedule.n_ranks - 1
        steps = 2 * (replicas - 1)
        return steps * (
            per_rank / replicas / self.bandwidth[:used].min()
            + self.latency[:used].max()
        )


def _combinations(
    ranks: int,
    n_layers: int,
    batch: int,
    microbatches: Sequence[int] | None,
    schedules: Sequence[str],
    checkpoints: Sequence[str],
    max_replicas: int,
) -> Iterator[Combination]:
    for replicas in range(1, max_replicas + 1):
        share = -(-batch // replicas)
        numbers = microbatches or _numbers(share)
        numbers = [m for m in numbers if m <= share]
        for n_ranks, m, name, checkpoint in itertools.product(
            range(1, ranks // replicas + 1), numbers, schedules, checkpoints
        ):
            per_rank = _CHUNKED.get(name, 1)
            # On one rank all schedules are the same.
            if n_ranks == 1 and (per_rank > 1 or name != schedules[0]):
                continue
            if n_ranks * per_rank <= n_layers and not (
                checkpoint == "except_last" and m == 1
            ):
                yield Combination(replicas, n_ranks, per_rank, name, m, checkpoint)


def _numbers(n_samples: int) -> list[int]:
    """Returns for each size of microbatch the least number of them that gives it."""
    least = {-(-n_samples // m): m for m in range(n_samples, 0, -1)}
    return sorted(least.values())


def _bound(schedule: Schedule, costs: Costs) -> float:
    """Returns what a step takes at least.

    A rank waits for the first microbatch to come through the stages before its own.
    It computes all of its own; then, unless it ends with weight gradients, the last
    backward has to go through the stages before.
    """
    d, m = schedule.n_stages, schedule.n_microbatches
    forward, whole, first, _ = costs.durations(d, m)
    work = (forward + whole).sum(axis=1)
    ranks = np.array(schedule.stage_ranks)
    split = bool((schedule.kind > 1).any())
    busy = np.zeros(schedule.n_ranks)
    np.add.at(busy, ranks, work)
    # A rank is on its way in when its first stage is reached, and out after that one.
    entry = np.concatenate([[0.0], np.cumsum(forward.min(axis=1))])[:-1]
    leave = np.concatenate([[0.0], np.cumsum(whole.min(axis=1))])[:-1]
    firsts = np.array([ranks.tolist().index(r) for r in range(schedule.n_ranks)])
    ways = entry[firsts] + (0.0 if split else leave[firsts])
    transfer, _ = costs.edges(d)
    return float(max((busy + ways).max(), m * transfer.max(initial=0.0)))


def _check_memory(candidate: _Candidate, profile: Profile, memory: np.ndarray) -> None:
    """Refuses what does not fit when the stages of a rank share its memory."""
    from pipeline.validation import peaks

    plan, schedule = candidate.plan, candidate.schedule
    held = peaks(schedule, *candidate.costs.units(schedule.n_stages))
    needed = fixed_memory(plan, schedule, profile) + np.array(held)
    lacks = needed - memory
    rank = int(lacks.argmax())
    if lacks[rank] > 0:
        raise MemoryLimitError(
            f"rank {rank} with the stages {schedule.rank_stages(rank)} needs"
            f" {format_bytes(needed[rank])}, {format_bytes(lacks[rank])} more than its"
            f" {format_bytes(memory[rank])}"
        )
    candidate.plan = replace(
        plan, stages=[_without_limit(stage) for stage in plan.stages]
    )


def _without_limit(stage: StagePlan) -> StagePlan:
    """Leaves out the share of its rank's memory, which is no limit."""
    return replace(stage, memory_limit=None)


def _simulate(candidates: list[_Candidate], network: Network) -> _Candidate:
    """Simulates what could win and returns the winner."""
    best = np.inf
    for candidate in sorted(candidates, key=lambda c: c.bound):
        if candidate.bound > best * _SAME:
            break
        timeline = run(candidate.schedule, candidate.costs, network)
        ends = np.zeros(timeline.n_ranks)
        np.maximum.at(ends, timeline.rank, timeline.end)
        candidate.seconds = float((ends + candidate.gradient_seconds).max())
        candidate.timeline = timeline
        best = min(best, candidate.seconds)
    same = [c for c in candidates if c.seconds <= best * _SAME]
    return min(same, key=_frugality)


def _frugality(candidate: _Candidate) -> tuple:
    """Of plans that take the same time, the one that needs least is best."""
    combination = candidate.combination
    return (
        combination.replicas * combination.n_ranks,
        CHECKPOINTS.index(combination.checkpoint),
        int(candidate.timeline.peak_memory.max()),
        combination.stages_per_rank,
        combination.n_microbatches,
        candidate.timeline.peak_in_flight.max(),
    )


def _alternatives(
    best: _Candidate, candidates: list[_Candidate], out: list[tuple[Combination, str]]
) -> tuple[Alternative, ...]:
    """Says of the others why they lost: the best, and the best one of every kind."""
    losers = sorted(
        (c for c in candidates if c is not best),
        key=lambda c: (min(c.seconds, np.inf), c.bound),
    )
    entries = [(c.combination, c) for c in losers] + out
    kept, kinds = [], {*_kinds(best.combination)}
    for combination, loser in entries:
        new = set(_kinds(combination)) - kinds
        if len(kept) >= _KEPT and not new:
            continue
        kinds |= new
        if isinstance(loser, str):
            kept.append(Alternative(str(combination), np.inf, loser))
        else:
            seconds = loser.seconds if loser.timeline is not None else loser.bound
            reason = _reason(loser, best)
            kept.append(Alternative(str(combination), seconds, reason, loser.plan))
    return tuple(kept)


def _kinds(combination: Combination) -> list[tuple[str, object]]:
    return [
        (name, getattr(combination, name))
        for name in ("replicas", "n_ranks", "schedule", "checkpoint")
    ]


def _reason(loser: _Candidate, best: _Candidate) -> str:
    if loser.timeline is None:
        return (
            f"takes {format_seconds(loser.bound)} at least, by what its ranks and"
            f" links have to do"
        )
    if loser.seconds <= best.seconds * _SAME:
        return "as fast, but needs more ranks or memory"
    busy, busy_best = (c.timeline.busy.max() for c in (loser, best))
    bubble, bubble_best = (c.timeline.bubble.mean() for c in (loser, best))
    return (
        f"{loser.seconds / best.seconds - 1:.1%} slower: its busiest rank computes"
        f" {format_seconds(busy)} (chosen: {format_seconds(busy_best)}), its ranks wait"
        f" {bubble:.0%} of the time ({bubble_best:.0%})"
    )


def _check(ranks, batch, schedules, checkpoints, max_replicas) -> None:
    for name, number in (
        ("ranks", ranks),
        ("batch", batch),
        ("max_replicas", max_replicas),
    ):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    for name, values, known in (
        ("schedules", schedules, generators.NAMES),
        ("checkpoints", checkpoints, CHECKPOINTS),
    ):
        unknown = [value for value in values if value not in known]
        if unknown or not values:
            raise ValueError(
                f"{name} must be some of {', '.join(known)}, not {list(values)}"
            )
