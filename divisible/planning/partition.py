"""Cuts a model into stages: optimally, or by other methods to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from divisible.planning.conditions import Conditions, Machine
from divisible.planning.dynamic_program import StageCost, evenest, least_lacking
from divisible.planning.machine import Network, PerRank, spread_memory
from divisible.planning.memory import StageCosts
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile, named_files
from divisible.planning.stage_plan import StagePlan
from divisible.planning.units import count, format_bytes
from divisible.schedules.catalogue import CATALOGUE, ONE_PER_RANK, create
from divisible.schedules.recomputation import recompute
from divisible.schedules.schedule import Schedule

METHODS = ("optimal", "uniform", "parameters", "time")
# How many stages without enough memory an error lists.
_SHOWN = 4


class MemoryLimitError(ValueError):
    """No cut fits into the memory of the ranks; the message says what lacks where."""


def partition(
    profile: Profile,
    n_stages: int,
    *,
    method: str = "optimal",
    speeds: PerRank | None = None,
    memory: PerRank | None = None,
    network: Network | None = None,
    schedule: str | Schedule = "1f1b",
    n_microbatches: int | None = None,
    checkpoint: str = "never",
    cuts: Sequence[int] | None = None,
) -> Plan:
    """Cuts a model so that the slowest stage is as fast as possible.

    Stage ``s`` runs on rank ``s``. A pipeline takes, after it is full, as long per
    microbatch as its slowest stage: forward, backward and recomputation of its layers
    on its rank; or its slowest link, if messages travel while ranks compute, and else
    the stage with its messages. Of the plans with the same slowest stage it chooses
    the one with the least sum of squared times, which is even and sends little.

    Args:
        profile: What the layers cost, at the size of microbatch in use.
        n_stages (int): Number of stages.
        method (str): ``'optimal'``; or for comparison ``'uniform'`` for equally many
            layers, as in section 7 of Takisawa et al., ``'parameters'`` for the least
            most parameters, ``'time'`` for the least most time of the layers, whatever
            ranks and links are like.
        speeds: Of the ranks, relative to that of the profile: 2 halves the times. One
            number for all or one for each rank; the first ``n_stages`` are used.
        memory: Bytes that a rank may use; one number for all or one for each. No limit
            by default.
        network (Network): The links; infinitely fast by default.
        schedule (str or Schedule): Tells how many microbatches a stage holds: a name of
            one with one stage on each rank, or the schedule itself. If that puts
            several stages on a rank, ``speeds``, ``memory`` and ``network`` are still
            those of the stages, one after the other.
        n_microbatches (int): Number of microbatches. It may be left out with a name
            where more of them take no more memory, which they do in ``'gpipe'``.
        checkpoint (str): ``'never'``, ``'except_last'`` or ``'always'``: for which
            microbatches the forward runs again before the backward, and only the
            stage's input is held in between.
        cuts: Where to cut, in place of a method: to learn what the stages cost, and
            whether they fit.

    Returns:
        Plan: The cuts, what each stage costs, and the ``conditions``.

    Raises:
        MemoryLimitError: If the plan needs more memory than there is; with the
            optimal method, if every plan does. The message says which stage lacks how
            much.
        TypeError: If ``profile`` is not a single one.
        ValueError: If an argument is out of range, there are fewer layers than
            stages, or ``cuts`` are not of so many stages of this model.

    Example:
        >>> from divisible.planning.layer_cost import LayerCost
        >>> times = [1, 1, 1, 1, 4, 4]
        >>> profile = Profile([LayerCost(t, 0, 0) for t in times], n_samples=1)
        >>> partition(profile, n_stages=3).cuts
        [0, 4, 5, 6]
        >>> partition(profile, n_stages=2, speeds=[1, 3]).cuts
        [0, 3, 6]
    """
    if not isinstance(profile, Profile):
        raise TypeError(
            f"partition needs one Profile, at the size of microbatch in use, not a"
            f" {type(profile).__name__}; best_plan takes several"
        )
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if cuts is not None and method != "optimal":
        raise ValueError(f"cuts are given, so there is nothing for {method!r} to cut")
    if not 1 <= n_stages <= len(profile):
        raise ValueError(
            f"{len(profile)} layers cannot be cut into {n_stages} stages: each stage"
            f" needs at least one. Use between 1 and {len(profile)} stages."
        )
    if n_microbatches is not None and n_microbatches < 1:
        raise ValueError(f"n_microbatches must be positive, not {n_microbatches}")
    chosen = _schedule(schedule, n_stages, n_microbatches, checkpoint)
    costs = StageCosts.of(profile, chosen, speeds, network)
    if isinstance(schedule, Schedule):
        n_microbatches, schedule = schedule.n_microbatches, None
    elif n_microbatches is None:
        # Of many microbatches one that is spared does not count.
        costs = replace(costs, recomputed=np.ceil(costs.recomputed))
    limits = spread_memory(memory, n_stages)
    if cuts is None:
        cuts = find_cuts(costs, limits, method)
    else:
        _check_cuts(costs, cuts, limits)
    return Plan(
        cuts,
        n_microbatches=n_microbatches,
        schedule=schedule,
        checkpoint=checkpoint,
        layers=tuple(layer.name for layer in profile.layers),
        stages=describe(costs, cuts, limits),
        conditions=Conditions(
            Machine(n_stages, memory, costs.network, speeds),
            microbatch_size=profile.n_samples,
            profiles=named_files([profile]),
        ),
    )


def _schedule(
    schedule: str | Schedule, n_stages: int, n_microbatches: int | None, checkpoint: str
) -> Schedule:
    """Returns what the stages run, with the forwards that run again."""
    if isinstance(schedule, Schedule):
        if schedule.n_stages != n_stages:
            raise ValueError(
                f"the schedule {schedule.name} is of"
                f" {count(schedule.n_stages, 'stage')}, not of {n_stages}"
            )
        if n_microbatches not in (None, schedule.n_microbatches):
            raise ValueError(
                f"n_microbatches is {n_microbatches}, but the schedule has"
                f" {schedule.n_microbatches}"
            )
        schedule.validate()
        return recompute(schedule, checkpoint)
    if schedule in CATALOGUE and schedule not in ONE_PER_RANK:
        raise ValueError(
            f"{schedule} puts several stages on a rank, which share its memory:"
            f" best_plan cuts for that. Choose one of {', '.join(ONE_PER_RANK)}, or"
            f" pass a Schedule, with speeds and memory of its stages"
        )

    def make(m: int) -> Schedule:
        return recompute(create(schedule, n_stages, m), checkpoint)

    if n_microbatches is not None:
        return make(n_microbatches)
    some, more = make(2 * n_stages), make(3 * n_stages)
    if not all(map(np.array_equal, some.moments, more.moments)):
        raise ValueError(
            f"{schedule} holds more of them the more microbatches there are:"
            f" n_microbatches is needed to know how much memory that is"
        )
    return some


def find_cuts(
    costs: StageCosts, limits: np.ndarray, method: str = "optimal"
) -> list[int]:
    """Finds cuts by a method.

    Args:
        costs: Of the stages.
        limits: The memory that each stage may use, in bytes.
        method: One of `METHODS`.

    Raises:
        MemoryLimitError: If they do not fit; with the optimal method, if none does.
    """
    if method == "optimal":
        cuts = _optimal(costs, limits)
        if cuts is None:
            raise _explain(costs, limits)
        return cuts
    n_layers = costs.n_layers
    if method == "uniform":
        cuts = Plan.uniform(n_layers, costs.n_stages).cuts
    elif method == "parameters":
        # Layers without parameters are spread as well, all together as half a byte.
        cuts = _balanced(
            costs.layers.parameters + np.linspace(0, 0.5, n_layers + 1), costs
        )
    else:
        cuts = _balanced(costs.busy()[0], costs)
    _check_cuts(costs, cuts, limits)
    return cuts


def describe(
    costs: StageCosts, cuts: Sequence[int], limits: np.ndarray
) -> tuple[StagePlan, ...]:
    """Returns what the stages of a plan cost."""
    before = np.diagonal(costs.link_seconds()[:, cuts[:-1]])
    sums = costs.layers.stages(cuts)
    columns = (
        costs.seconds(cuts),
        before,
        costs.bytes(cuts).round().astype(int),
        limits,
        sums.output_bytes.astype(int),
        sums.n_gradients,
    )
    return tuple(
        StagePlan(seconds, link, memory, None if limit == np.inf else limit, *sizes)
        for seconds, link, memory, limit, *sizes in zip(*(c.tolist() for c in columns))
    )


def _check_cuts(costs: StageCosts, cuts: Sequence[int], limits: np.ndarray) -> None:
    """Refuses cuts that do not fit the model or the memory."""
    plan = Plan(cuts)
    if (plan.n_stages, plan.n_layers) != (costs.n_stages, costs.n_layers):
        raise ValueError(
            f"the cuts {plan.cuts} make {count(plan.n_stages, 'stage')} of"
            f" {count(plan.n_layers, 'layer')}, not {costs.n_stages} of"
            f" {costs.n_layers}"
        )
    shortage = _shortage(costs, cuts, limits)
    if shortage:
        raise MemoryLimitError(f"the cuts {plan.cuts} do not fit: {shortage}")


def _optimal(costs: StageCosts, limits: np.ndarray) -> list[int] | None:
    """Minimises the slowest stage; None if nothing fits."""
    busy = costs.busy()
    links = costs.link_seconds()
    before, behind = links[:-1], links[1:]
    if costs.network.overlap:
        cost = StageCost(busy, busy, before, busy)
    else:
        # Each message keeps both of its ranks: one each way, on either side.
        none = np.zeros_like(busy)
        cost = StageCost(busy + 2 * behind, busy - 2 * before, none, busy)
    return evenest(costs, cost, limits)


def _balanced(sums: np.ndarray, costs: StageCosts) -> list[int]:
    """Minimises the greatest difference of sums, whatever ranks and links are like."""
    sums = np.tile(sums, (costs.n_stages, 1))
    cost = StageCost(sums, sums, np.zeros_like(sums), sums)
    return evenest(costs, cost, np.full(costs.n_stages, np.inf))


def _explain(costs: StageCosts, limits: np.ndarray) -> MemoryLimitError:
    """Says what lacks where in the plan that lacks least."""
    alone = costs.bytes_alone()
    lacks = np.where(_may_hold(*alone.shape), alone - limits[:, None], np.inf)
    largest = int(lacks.min(axis=0).argmax())
    s = int(lacks[:, largest].argmin())
    cuts = least_lacking(costs, limits)
    message = (
        f"no plan of {count(costs.n_stages, 'stage')} fits into the memory of the"
        f" ranks. In {cuts}, which lacks least, {_shortage(costs, cuts, limits)}."
    )
    if lacks[s, largest] > 0:
        message += (
            f" Layer {largest} alone fits nowhere: where it lacks least, as stage {s},"
            f" it needs {format_bytes(alone[s, largest])}. Use smaller microbatches."
        )
    else:
        message += " Use more ranks, smaller microbatches, or recomputation."
    return MemoryLimitError(message)


def _may_hold(n_stages: int, n_layers: int) -> np.ndarray:
    """Tells which stages can have which layers, if each stage has one at least.

    Returns:
        Booleans of shape (n_stages, n_layers).
    """
    before = np.arange(n_layers) - np.arange(n_stages)[:, None]
    return (before >= 0) & (before <= n_layers - n_stages)


def _shortage(costs: StageCosts, cuts: Sequence[int], limits: np.ndarray) -> str:
    """Says which stages lack how much; nothing if none does."""
    lacks = [
        f"stage {s} (layers {start} to {end - 1}) needs {format_bytes(needed)},"
        f" {format_bytes(needed - limit)} more than the {format_bytes(limit)} of its"
        f" rank"
        for s, (start, end, needed, limit) in enumerate(
            zip(cuts, cuts[1:], costs.bytes(cuts).tolist(), limits.tolist())
        )
        if needed > limit
    ]
    if len(lacks) > _SHOWN:
        lacks[_SHOWN:] = [f"and {len(lacks) - _SHOWN} more stages lack memory"]
    return "; ".join(lacks)
