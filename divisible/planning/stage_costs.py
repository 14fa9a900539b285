"""The costs of the stages of any schedule, from the costs of a model's layers."""

from __future__ import annotations

from collections.abc import Sequence

from divisible.planning.cost_model import CostModel
from divisible.planning.network import Network
from divisible.planning.partition import partition
from divisible.planning.per_rank import PerRank, spread_speeds
from divisible.planning.profile import Profile
from divisible.schedules.costs import Costs
from divisible.schedules.schedule import Schedule


def stage_costs(
    profile: Profile, schedule: Schedule, network: Network | None = None
) -> Costs:
    """Cuts a model into the stages of a schedule, and returns what they cost.

    The slowest stage is as fast as possible, for ranks of equal speed
    (:func:`divisible.partition`).

    Args:
        profile: Costs of the layers, at the size of microbatch in use.
        schedule: A valid schedule.
        network: The links between neighbouring ranks; infinitely fast by default.

    Returns:
        Costs of the stages, with times of shape ``(n_stages, n_microbatches)``, and of
        the edges between them.

    Raises:
        ValueError: If the model has fewer layers than the schedule has stages.

    Example:
        >>> from divisible.planning.layer_cost import LayerCost
        >>> from divisible.schedules import one_f_one_b
        >>> profile = Profile([LayerCost(t, 0, 0) for t in (1, 1, 2)], n_samples=1)
        >>> stage_costs(profile, one_f_one_b(2, 1)).forward.tolist()
        [[2.0], [2.0]]
    """
    model = stage_model([profile] * schedule.n_microbatches, schedule, network)
    return model.costs(partition(profile, schedule.n_stages, schedule=schedule).cuts)


def stage_model(
    profiles: Sequence[Profile],
    schedule: Schedule,
    network: Network | None = None,
    speeds: PerRank | None = None,
) -> CostModel:
    """Returns the costs of a schedule's stages, for any cuts.

    Args:
        profiles: Costs of the layers for each microbatch, the largest one first.
        schedule: A valid schedule.
        network: The links between neighbouring ranks; infinitely fast by default.
        speeds: Speeds of the ranks, relative to that of the profiles; 1 by default.

    Raises:
        ValueError: If there are fewer speeds or links than ranks need.
    """
    n_ranks = schedule.n_ranks
    links = (Network() if network is None else network).links(n_ranks)
    return CostModel.of(schedule, profiles, spread_speeds(speeds, n_ranks), links)
