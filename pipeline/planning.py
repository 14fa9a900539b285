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
from dataclasses import replace

import numpy as np

from divisible.layer_costs import Profile, sort_profiles
from divisible.partitioning import MemoryLimitError
from divisible.plan import Alternative, Plan
from divisible.stage_costs import CHECKPOINTS, Network, PerRank
from divisible.units import format_seconds
from pipeline import schedules as generators
from pipeline.combinations import Candidate, Combination, Combinations
from pipeline.prediction import run

#: What is tried by default.
SCHEDULES = ("1f1b", "gpipe", "zb_h1", "interleaved", "zb_v")
# The number of stages on a rank, where it is not one.
_CHUNKED = {"interleaved": 2, "looped_bfs": 2, "zb_v": 2}

# Predictions of equal time differ by rounding.
_SAME = 1 + 1e-6
# How many of the alternatives are kept, besides the best one of every kind.
_KEPT = 10


def best_plan(
    profile: Profile | Sequence[Profile],
    ranks: int,
    memory: PerRank | None = None,
    network: Network | None = None,
    *,
    batch: int | None = None,
    microbatches: Sequence[int] | None = None,
    schedules: Sequence[str] = SCHEDULES,
    checkpoints: Sequence[str] = CHECKPOINTS,
    pipeline_ranks: Sequence[int] | None = None,
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
        pipeline_ranks: The numbers of ranks to make a pipeline of, to try; by default
            all up to ``ranks``.
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
    search = Combinations(profiles, ranks, memory, network, batch, speeds)
    combinations = [
        combination
        for combination in _combinations(
            ranks,
            len(profiles[0]),
            batch,
            microbatches,
            schedules,
            checkpoints,
            max_replicas,
        )
        if pipeline_ranks is None or combination.n_ranks in pipeline_ranks
    ]
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
        combination, reason = max(out, key=_thrift)
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


def _thrift(entry: tuple[Combination, str]) -> tuple:
    """Orders combinations by how little memory they should need."""
    combination, _ = entry
    return (
        combination.n_ranks,
        -combination.stages_per_rank,
        combination.n_microbatches,
        CHECKPOINTS.index(combination.checkpoint),
        combination.schedule == "1f1b",
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


def _simulate(candidates: list[Candidate], network: Network) -> Candidate:
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


def _frugality(candidate: Candidate) -> tuple:
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
    best: Candidate, candidates: list[Candidate], out: list[tuple[Combination, str]]
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


def _reason(loser: Candidate, best: Candidate) -> str:
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
