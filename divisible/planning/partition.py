"""A model cut into stages for one size of microbatch, with the costs of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from divisible.keywords import names_keywords
from divisible.planning.conditions import Conditions
from divisible.planning.cost_model import CostModel
from divisible.planning.cuts import METHODS, check_cuts, find_cuts, stage_plans
from divisible.planning.machine import Machine
from divisible.planning.network import Network
from divisible.planning.per_rank import PerRank, spread_memory, spread_speeds
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile, named_files
from divisible.planning.units import count
from divisible.schedules import recomputation
from divisible.schedules.catalogue import CATALOGUE, ONE_PER_RANK, create
from divisible.schedules.schedule import Schedule


@names_keywords
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
    recompute: str = "never",
    cuts: Sequence[int] | None = None,
) -> Plan:
    """Cuts a model so that the slowest stage is as fast as possible.

    Stage ``s`` runs on rank ``s``. After a pipeline is full, it takes as long per
    microbatch as its slowest stage: forward, backward and recomputation of its layers
    on its rank. If messages travel while ranks compute, a slower link counts instead;
    otherwise messages add to the time of a stage. Among the plans with the same slowest
    stage, the one with the least sum of squared times is chosen, which is even and
    sends little.

    Args:
        profile: Costs of the layers, at the size of microbatch in use.
        n_stages (int): Number of stages.
        method (str): Method to find cuts. The methods other than ``'optimal'`` are for
            comparison, and do not depend on ranks and links. Stages have equally many
            layers by ``'uniform'``, as in section 7 of Takisawa et al. The most
            parameters of a stage are minimised by ``'parameters'``, and the longest
            time of a stage's layers by ``'time'``.
        speeds: Speeds of the ranks, relative to that of the profile: 2 halves the
            times. One number for all or one for each rank; the first ``n_stages`` are
            used.
        memory: Bytes that a rank may use; one number for all or one for each. No limit
            by default.
        network (Network): The links; infinitely fast by default.
        schedule (str or Schedule): Schedule, which determines how many microbatches a
            stage holds: the name of one with one stage on each rank, or a schedule. If
            a schedule puts several stages on a rank, ``speeds``, ``memory`` and
            ``network`` are still those of the stages, one after the other.
        n_microbatches (int): Number of microbatches. It may be left out with the name
            of a schedule in which more microbatches take no more memory, unlike
            ``'gpipe'``.
        recompute (str): Microbatches whose forward runs again before the backward, so
            that only the stage's input is held in between: ``'never'``,
            ``'except_last'`` or ``'always'``.
        cuts: Positions of cuts to use instead of a method, in order to get the costs of
            the stages, and to check whether they fit.

    Returns:
        Plan: The cuts, the costs of each stage, and the ``conditions``.

    Raises:
        MemoryLimitError: If the plan needs more memory than there is; with the optimal
            method, if every plan does. The message says which stage lacks how much.
        TypeError: If ``profile`` is not a single profile.
        ValueError: If an argument is out of range, there are fewer layers than stages,
            or ``cuts`` do not fit the model and ``n_stages``.

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
        raise ValueError(
            f"cuts are given, so there is nothing for method={method!r} to cut: leave"
            f" one of the two out"
        )
    if not 1 <= n_stages <= len(profile):
        raise ValueError(
            f"{len(profile)} layers cannot be cut into {n_stages} stages: each stage"
            f" needs at least one. Use between 1 and {len(profile)} stages."
        )
    if n_microbatches is not None and n_microbatches < 1:
        raise ValueError(f"n_microbatches must be positive, not {n_microbatches}")
    recomputation.check_recomputation("recompute", recompute)
    chosen = _schedule(schedule, n_stages, n_microbatches, recompute)
    network = Network() if network is None else network
    model = CostModel(
        chosen,
        [profile],
        spread_speeds(speeds, n_stages),
        network.links(n_stages),
        spares_none=n_microbatches is None and not isinstance(schedule, Schedule),
    )
    if isinstance(schedule, Schedule):
        n_microbatches, schedule = schedule.n_microbatches, None
    limits = spread_memory(memory, n_stages)
    if cuts is None:
        cuts = find_cuts(model, limits, method)
    else:
        check_cuts(model, cuts, limits)
    return Plan(
        cuts,
        n_microbatches=n_microbatches,
        schedule=schedule,
        recompute=recompute,
        layers=tuple(layer.name for layer in profile.layers),
        stages=stage_plans(model, cuts, limits),
        conditions=Conditions(
            Machine(n_stages, memory, network, speeds),
            microbatch_size=profile.n_samples,
            profiles=named_files([profile]),
        ),
    )


def _schedule(
    schedule: str | Schedule, n_stages: int, n_microbatches: int | None, recompute: str
) -> Schedule:
    """Returns the schedule of the stages, with the forwards that run again."""
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
        return recomputation.recompute(schedule, recompute)
    if schedule in CATALOGUE and schedule not in ONE_PER_RANK:
        raise ValueError(
            f"{schedule} puts several stages on a rank, which share its memory:"
            f" best_plan cuts for that. Choose one of {', '.join(ONE_PER_RANK)}, or"
            f" pass a Schedule, with speeds and memory of its stages"
        )

    def make(m: int) -> Schedule:
        return recomputation.recompute(create(schedule, n_stages, m), recompute)

    if n_microbatches is not None:
        return make(n_microbatches)
    some, more = make(2 * n_stages), make(3 * n_stages)
    if not all(map(np.array_equal, some.moments, more.moments)):
        raise ValueError(
            f"{schedule} holds more of them the more microbatches there are:"
            f" n_microbatches is needed to know how much memory that is"
        )
    return some
