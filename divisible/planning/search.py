"""Chooses stages, microbatches, schedule and recomputation together.

Every configuration is cut so that its slowest stage is as fast as possible. What its
busiest rank has to compute is a bound on its step, so that only those are simulated
that could still win with these cuts::

    configuration -> partition -> does not fit: out
                             -> bound        -> simulate in the order of the bounds,
                                                until the bound exceeds the best
                                             -> move the cuts of the fastest
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from divisible.communication.wire import check_wire_dtype
from divisible.planning.candidates import SAME, Configurations
from divisible.planning.coding import CodingRate
from divisible.planning.configuration import Candidate, Configuration, Outcome
from divisible.planning.disk import Disk
from divisible.planning.gradient_exchange import Wire
from divisible.planning.interpolation import sort_profiles
from divisible.planning.machine import Network, PerRank
from divisible.planning.partition import MemoryLimitError
from divisible.planning.plan import Alternative, Plan
from divisible.planning.profile import Profile
from divisible.planning.search_arguments import check_arguments, check_size, integers
from divisible.planning.units import format_seconds
from divisible.schedules.catalogue import (
    CATALOGUE,
    NAMES,
    ONE_PER_RANK,
    TRIED_BY_DEFAULT,
    create,
)
from divisible.schedules.recomputation import CHECKPOINTS

# Candidates that are cut still better: so many at most, and so much slower at most.
_IMPROVED, _NEAR = 5, 1.1
# How much may be tried for each of them; some seconds' worth.
_EFFORT = 2 * 10**6
# Said of plans that are slower by no more than the scatter of the profiles.
_WITHIN = "within the scatter of the timings"
# How many of the alternatives are kept, besides the best one of every kind.
_KEPT = 10
# With more microbatches than enough a pipeline hardly waits less. More are tried only
# if nothing fits, so many times as many, up to what takes minutes.
_ENOUGH, _MORE, _MOST = 1024, 4, 2**16
# How many numbers up to what is enough are tried, if there are so many more.
_TRIED = 61


def best_plan(
    profile: Profile | Sequence[Profile],
    ranks: int,
    memory: PerRank | None = None,
    network: Network | None = None,
    *,
    batch: int | None = None,
    microbatches: Sequence[int] | None = None,
    schedules: Sequence[str] = TRIED_BY_DEFAULT,
    checkpoints: Sequence[str] = CHECKPOINTS,
    pipeline_ranks: Sequence[int] | None = None,
    max_replicas: int = 1,
    min_replicas: int = 1,
    wire_dtype: str = "fp32",
    error_feedback: bool = False,
    coding: CodingRate | None = None,
    speeds: PerRank | None = None,
    disk: Disk | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Finds the fastest way to run a model on some ranks.

    Searches the number of stages, of microbatches and of replicas, the schedule and
    the recomputation. Each configuration is cut optimally (:func:`divisible.partition`)
    and simulated (:func:`divisible.simulate`) unless it does not fit or cannot win with
    these cuts. Those of the fastest are then moved as long as that makes the simulated
    step shorter, of very large models as far as some seconds allow. The step is forward
    and backward of a minibatch, and what is not hidden of the exchange of gradients
    between replicas (`divisible.planning.gradient_exchange` says how it is reckoned).

    Replicas of unequal speed get unequal shares of a minibatch: those of the plan are
    for :class:`data_parallel.ReplicaIterator`.

    Fewer ranks than there are may be faster; the first ones are used. With replicas,
    neighbouring ranks make a pipeline, and each rank has the links on the way to the
    other replicas for itself: where ranks share one, give each its part.

    Args:
        profile: The costs of the layers. A profile at one size of microbatch is scaled
            in proportion, which flatters small microbatches; give several, such as at
            the whole minibatch, a quarter and a sixteenth of it.
        ranks: Number of ranks.
        memory: Bytes that a rank may use; one number for all or one for each.
        network: The links between ranks; infinitely fast by default.
        batch: Samples of the minibatch; those of the largest profile by default.
        microbatches: The numbers of microbatches to try; by default for each size of
            microbatch the least number that gives it. Of more than 1,024 samples, some
            60 numbers up to 1,024 are tried, and if nothing fits, 4,096 and so on up
            to 65,536.
        schedules: The names of those to try.
        checkpoints: The ways to recompute to try.
        pipeline_ranks: The numbers of ranks to make a pipeline of, to try; by default
            all up to ``ranks``.
        max_replicas: The most replicas to try.
        min_replicas: The fewest to try.
        wire_dtype: The dtype in which replicas exchange gradients, such as ``'fp32'``
            or ``'int8'``: a name in `divisible.communication.wire.WIRE`.
        error_feedback: Whether they keep what encodings lose, which takes memory.
        coding: How fast a rank codes gradients for the wire; what the profile says by
            default, and if that says nothing, what is measured here.
        speeds: Of the ranks, relative to that of the profile.
        disk: Of each rank, to be used where memory does not suffice: microbatches wait
            there for their backward (``plan.hold_in``), or weights of layers are there
            (``plan.streamed``).
        progress: Called with the number of configurations seen and that of all.

    Returns:
        Plan: With ``step_seconds``, ``bubble``, what the ``exchange`` between replicas
        costs, the ``alternatives`` and why they lost, the ``conditions``, and the
        largest ``scatter`` of the profiles: what is slower by no more than that may be
        as fast.

    Raises:
        MemoryLimitError: If nothing fits. Where several stages on a rank share its
            memory, some ways to do so are tried, not all.
        TypeError: If numbers of something are not integers.
        ValueError: If an argument is out of range.

    Example:
        >>> from divisible.planning.layer_cost import LayerCost
        >>> layers = [LayerCost(1.0, 1.0, 1.0, output_bytes=10**6)] * 8
        >>> plan = best_plan(
        ...     Profile(layers, n_samples=8), 4, network=Network(latency=0.1),
        ...     microbatches=[1, 2, 4, 8], schedules=['1f1b'])
        >>> plan.cuts, plan.n_microbatches, round(plan.step_seconds, 2)
        ([0, 2, 4, 6, 8], 8, 9.85)
    """
    profiles = sort_profiles([profile] if isinstance(profile, Profile) else profile)
    batch = profiles[-1].n_samples if batch is None else batch
    schedules, checkpoints = tuple(schedules), tuple(checkpoints)
    check_arguments(ranks, batch, schedules, checkpoints, (min_replicas, max_replicas))
    check_wire_dtype(wire_dtype)
    check_size(profiles[-1], batch)
    if microbatches is not None:
        microbatches = integers("microbatches", microbatches)
        if max(microbatches) > _MOST:
            raise ValueError(
                f"microbatches must be {_MOST} at most, not {max(microbatches)}"
            )
    if pipeline_ranks is not None:
        pipeline_ranks = integers("pipeline_ranks", pipeline_ranks)
    wire = Wire(wire_dtype, error_feedback, coding)
    search = Configurations(profiles, ranks, memory, network, batch, speeds, wire, disk)
    rounds = (
        [
            configuration
            for configuration in _configurations(
                ranks,
                len(profiles[0]),
                batch,
                numbers,
                schedules,
                checkpoints,
                range(min_replicas, min(max_replicas, ranks) + 1),
            )
            if pipeline_ranks is None or configuration.n_ranks in pipeline_ranks
        ]
        for numbers in _rounds(batch, microbatches)
    )
    fitting, out = _cut(rounds, search, progress)
    if not fitting and not out:
        raise ValueError(
            f"no configuration of {ranks} ranks, {len(profiles[0])} layers, {batch}"
            f" samples, microbatches {microbatches or 'of any number'}, pipeline_ranks"
            f" {pipeline_ranks or 'of any number'} and schedules"
            f" {', '.join(schedules)} can run"
        )
    if not fitting:
        least = max(out, key=_thrift)
        raise MemoryLimitError(
            f"none of {len(out)} configurations fits into the memory of the ranks. With"
            f" {least.configuration}: {least.reason}"
        )
    _simulate(fitting, search)
    _improve(fitting, search)
    best = _fastest(fitting)
    seen = [one.scatter for one in profiles if one.scatter is not None]
    scatter = max(seen, default=None)
    return replace(
        search.plan(best),
        alternatives=_alternatives(search, best, fitting, out, scatter),
        scatter=scatter,
    )


def _cut(
    rounds: Iterable[Sequence[Configuration]],
    search: Configurations,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[Candidate], list[_Refused]]:
    """Cuts the model for all configurations of the first round of which some fit.

    Args:
        rounds: Of configurations, made when their turn comes.
        search: Cuts the model.
        progress: As of :func:`best_plan`.

    Returns:
        The candidates that fit, and what of all rounds so far does not.
    """
    fitting: list[Candidate] = []
    out: list[_Refused] = []
    for configurations in rounds:
        n_before = len(out)
        for n_seen, configuration in enumerate(configurations, n_before + 1):
            try:
                fitting += search.candidates(configuration)
            except MemoryLimitError as error:
                out.append(_Refused(configuration, str(error)))
            if progress is not None:
                progress(n_seen, n_before + len(configurations))
        if fitting:
            break
    return fitting, out


class _Refused(NamedTuple):
    """A configuration that does not fit into memory, and why."""

    configuration: Configuration
    reason: str


def _thrift(refused: _Refused) -> tuple:
    """Orders configurations by how little memory they should need."""
    configuration = refused.configuration
    return (
        configuration.n_ranks,
        -configuration.stages_per_rank,
        configuration.n_microbatches,
        CHECKPOINTS.index(configuration.checkpoint),
        -NAMES.index(configuration.schedule),
    )


def _configurations(
    ranks: int,
    n_layers: int,
    batch: int,
    numbers: Callable[[int], Sequence[int]],
    schedules: Sequence[str],
    checkpoints: Sequence[str],
    replicas_to_try: Sequence[int],
) -> Iterator[Configuration]:
    # On one rank all schedules take the same time.
    serial = min(
        (name for name in ONE_PER_RANK if name in schedules),
        key=lambda name: create(name, n_stages=1, n_microbatches=2).validate().held,
        default=None,
    )
    for replicas in replicas_to_try:
        most_ranks = min(ranks // replicas, n_layers)
        for n_ranks, m, name, checkpoint in itertools.product(
            range(1, most_ranks + 1),
            numbers(-(-batch // replicas)),
            schedules,
            checkpoints,
        ):
            per_rank = CATALOGUE[name].stages_per_rank
            if n_ranks == 1 and name != serial:
                continue
            if n_ranks * per_rank <= n_layers and not (
                checkpoint == "except_last" and m == 1
            ):
                yield Configuration(replicas, n_ranks, per_rank, name, m, checkpoint)


def _rounds(
    batch: int, microbatches: Sequence[int] | None
) -> Iterator[Callable[[int], Sequence[int]]]:
    """Yields functions from a number of samples to the numbers to try, in turn."""
    if microbatches is not None:
        yield lambda n_samples: [m for m in microbatches if m <= n_samples]
        return
    yield _numbers
    few = _ENOUGH
    while few < min(batch, _MOST):
        yield functools.partial(_more, few=few)
        few *= _MORE


def _numbers(n_samples: int) -> Sequence[int]:
    """Returns numbers up to what is enough, one for each size of microbatch."""
    tried = range(1, n_samples + 1)
    if n_samples > _ENOUGH:
        tried = np.geomspace(1, _ENOUGH, _TRIED).round().astype(int).tolist()
    return sorted({_least(n_samples, m) for m in tried})


def _more(n_samples: int, few: int) -> Sequence[int]:
    """Returns the next number to try, if so few were not enough."""
    return [_least(n_samples, min(_MORE * few, n_samples))] * (n_samples > few)


def _least(n_samples: int, n_microbatches: int) -> int:
    """Returns the least number of microbatches that gives the same size of them."""
    size = -(-n_samples // n_microbatches)
    return -(-n_samples // size)


def _simulate(candidates: list[Candidate], search: Configurations) -> None:
    """Simulates what could win."""
    best = np.inf
    for candidate in sorted(candidates, key=lambda c: c.bound):
        if candidate.bound > best * SAME:
            break
        candidate.outcome = search.simulate(candidate)
        best = min(best, candidate.outcome.seconds)


def _improve(candidates: list[Candidate], search: Configurations) -> None:
    """Cuts the fastest of those that are simulated still better."""

    def order(i: int) -> tuple:
        seconds = candidates[i].outcome.seconds
        # Those that take the same time but for rounding go by what they need.
        return float(f"{seconds:.5g}"), *_frugality(candidates[i])

    simulated = [i for i, c in enumerate(candidates) if c.outcome is not None]
    simulated.sort(key=order)
    limit = _NEAR * candidates[simulated[0]].outcome.seconds
    for i in simulated[:_IMPROVED]:
        if candidates[i].outcome.seconds <= limit:
            candidates[i] = search.improve(candidates[i], _EFFORT)


def _fastest(candidates: list[Candidate]) -> Candidate:
    """Returns the winner of those that are simulated."""
    simulated = [c for c in candidates if c.outcome is not None]
    best = min(c.outcome.seconds for c in simulated)
    same = [c for c in simulated if c.outcome.seconds <= best * SAME]
    return min(same, key=_frugality)


def _frugality(candidate: Candidate) -> tuple:
    """Of plans that take the same time, the one that needs least is best."""
    configuration, outcome = candidate.configuration, candidate.outcome
    return (
        configuration.replicas * configuration.n_ranks,
        CHECKPOINTS.index(configuration.checkpoint),
        configuration.hold_in != "memory",
        len(configuration.streamed),
        outcome.held,
        configuration.stages_per_rank,
        configuration.n_microbatches,
        outcome.in_flight,
    )


def _alternatives(
    search: Configurations,
    best: Candidate,
    candidates: list[Candidate],
    out: list[_Refused],
    scatter: float | None,
) -> tuple[Alternative, ...]:
    """Says of the others why they lost: the best, and the best one of every kind."""
    simulated = [c for c in candidates if c.outcome is not None and c is not best]
    bounded = [c for c in candidates if c.outcome is None]
    others = [
        *sorted(simulated, key=lambda c: c.outcome.seconds),
        *sorted(bounded, key=lambda c: c.bound),
    ]
    kept, kinds = [], {*_kinds(best.configuration)}
    for other in (*others, *out):
        new = set(_kinds(other.configuration)) - kinds
        if len(kept) >= _KEPT and not new:
            continue
        kinds |= new
        if isinstance(other, _Refused):
            name = str(other.configuration)
            kept.append(Alternative(name, np.inf, other.reason))
        else:
            seconds, reason = _why_not(other, best, scatter or 0.0)
            plan = search.plan(other)
            kept.append(Alternative(str(other), seconds, reason, plan))
    return tuple(kept)


def _why_not(other: Candidate, best: Candidate, scatter: float) -> tuple[float, str]:
    """Returns the seconds of a candidate, and why it lost."""
    mine, its = best.outcome, other.outcome
    seconds = other.bound if its is None else its.seconds
    slower = seconds / mine.seconds - 1
    if its is None:
        one = other.configuration
        if one.n_ranks == one.replicas == 1:
            # Nothing travels, so that is all there is to it.
            return seconds, f"one rank takes {1 + slower:.2f} times as long"
        perhaps = f", but may be as good {_WITHIN}" if slower <= scatter else ""
        return seconds, (
            f"cannot win{perhaps}: its ranks and links need {format_seconds(seconds)}"
            f" at least, cut at {other.cuts}"
        )
    if its.seconds <= mine.seconds * SAME:
        return seconds, "as fast, but needs more ranks or memory"
    within = f", {_WITHIN}" if slower <= scatter else ""
    return seconds, (
        f"{slower:.1%} slower{within}: its busiest rank computes"
        f" {format_seconds(its.busy)} (chosen: {format_seconds(mine.busy)}), its"
        f" ranks wait {its.bubble:.0%} of the time ({mine.bubble:.0%})"
        f"{_exposed(its, mine)}"
    )


def _exposed(its: Outcome, mine: Outcome) -> str:
    """Returns what two outcomes have of an exchange after their last backward."""
    if its.exchange is None and mine.exchange is None:
        return ""
    other, chosen = (
        "no time"
        if one.exchange is None
        else format_seconds(one.exchange.exposed_seconds)
        for one in (its, mine)
    )
    return f", and gradients are exchanged for {other} after that ({chosen})"


def _kinds(configuration: Configuration) -> list[tuple[str, object]]:
    return [
        (name, getattr(configuration, name))
        for name in ("replicas", "n_ranks", "schedule", "checkpoint", "hold_in")
    ] + [("streams", bool(configuration.streamed))]
