"""Predicts how a plan runs: from the layers' costs to a timeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from divisible import schedules
from divisible.layer_costs import (
    Profile,
    check_layers,
    interpolate,
    sort_profiles,
)
from divisible.plan import Plan
from divisible.schedules.recomputation import recompute
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import Costs, simulate
from divisible.schedules.timeline import Timeline
from divisible.stage_costs import Network, PerRank, spread_speeds


def predict(
    plan: Plan,
    profile: Profile | Sequence[Profile],
    *,
    batch: int | None = None,
    network: Network | None = None,
    speeds: PerRank | None = None,
) -> Timeline:
    """Simulates one minibatch of a plan: forward and backward, without the update.

    Args:
        plan: With ``n_microbatches`` and ``schedule``.
        profile: The costs of the model's layers; several profiles at different sizes
            of microbatch are interpolated.
        batch: Samples of the minibatch, of which each replica takes its share; those
            of the largest profile by default.
        network: The links between the ranks, those of all replicas; infinitely fast by
            default.
        speeds: Of the ranks, those of all replicas, relative to that of the profile.

    Returns:
        Timeline: Of one replica. For each place in the pipeline it is reckoned with the
        slowest rank and link that a replica has there, because in the end all wait for
        each other. ``peak_memory`` is all that a rank holds: parameters, gradients,
        optimizer state, activations, workspace.

    Raises:
        ValueError: If an argument is out of range, or the plan is for another model.

    Example:
        >>> from divisible.layer_costs import LayerCost
        >>> profile = Profile([LayerCost(1.0, 1.0, 1.0)] * 4, n_samples=8)
        >>> plan = Plan([0, 2, 4], n_microbatches=8, schedule='1f1b')
        >>> predict(plan, profile).makespan     # (m + d - 1) (F + B) of a microbatch
        6.75
    """
    profiles = sort_profiles([profile] if isinstance(profile, Profile) else profile)
    check_plan(plan, profiles[0])
    schedule = recompute(
        schedules.create(
            plan.schedule,
            plan.n_stages,
            plan.n_microbatches,
            plan.n_stages // plan.stages_per_rank,
        ),
        plan.checkpoint,
    )
    batch = profiles[-1].n_samples if batch is None else batch
    sizes = microbatch_sizes(-(-batch // plan.replicas), plan.n_microbatches)
    network, speeds = slowest_replica(
        Network() if network is None else network,
        spread_speeds(speeds, plan.replicas * schedule.n_ranks),
        plan.replicas,
    )
    sized = {size: interpolate(profiles, size) for size in set(sizes)}
    each = [sized[size] for size in sizes]
    costs = stage_costs(plan, schedule, each, network, speeds)
    timeline = run(schedule, costs, network)
    timeline.peak_memory += fixed_memory(plan, schedule, sized[max(sizes)])
    return timeline


def run(schedule: Schedule, costs: Costs, network: Network) -> Timeline:
    """Simulates a schedule on links that carry one message at a time."""
    if not network.overlap:
        return simulate(schedule, costs, overlap=False)
    links = "serial" if np.any(costs.transfer) else "parallel"
    return simulate(schedule, costs, links=links)


def slowest_replica(
    network: Network, speeds: np.ndarray, replicas: int
) -> tuple[Network, np.ndarray]:
    """Returns for each place in a pipeline the slowest that a replica has there.

    Args:
        network: The links between all ranks.
        speeds: Of all ranks; neighbouring ones make a pipeline.
        replicas: How many pipelines there are.

    Returns:
        The links and the speeds of one pipeline.
    """
    n_ranks = len(speeds) // replicas
    bandwidth, latency = network.edges(len(speeds))
    # The link between two replicas carries gradients only.
    links = np.arange(replicas)[:, None] * n_ranks + np.arange(n_ranks - 1)
    slowest = Network(
        bandwidth[links].min(axis=0), latency[links].max(axis=0), network.overlap
    )
    return slowest, speeds.reshape(replicas, n_ranks).min(axis=0)


def check_plan(plan: Plan, profile: Profile) -> None:
    """Refuses a plan that is not complete, or for another model than the profile's.

    Raises:
        ValueError: With what is missing or differs.
    """
    for name in ("n_microbatches", "schedule"):
        if getattr(plan, name) is None:
            raise ValueError(
                f"the plan {plan.cuts} does not say {name}: make it with"
                f" Plan(cuts, n_microbatches=..., schedule=...) or Plan.best"
            )
    names = tuple(layer.name for layer in profile.layers)
    if plan.n_layers != len(profile):
        raise ValueError(
            f"the plan {plan.cuts} is for a model of {plan.n_layers} layers, but the"
            f" profile is of one of {len(profile)}"
        )
    check_layers("the plan", plan.layers or names, "the profile", names)


def microbatch_sizes(n_samples: int, n_microbatches: int) -> list[int]:
    """Returns the samples of each microbatch, as the pipeline cuts a minibatch.

    Raises:
        ValueError: If there are more microbatches than samples, or none.

    Example:
        >>> microbatch_sizes(10, 4)
        [3, 3, 2, 2]
    """
    if not 1 <= n_microbatches <= n_samples:
        raise ValueError(
            f"{n_samples} samples cannot be cut into {n_microbatches} microbatches"
        )
    each, extra = divmod(n_samples, n_microbatches)
    return [each + (i < extra) for i in range(n_microbatches)]


def stage_sums(profile: Profile, cuts: Sequence[int]) -> dict[str, np.ndarray]:
    """Adds up a profile's columns for each stage.

    Returns:
        For each attribute of :class:`divisible.LayerCost` an array of shape
        (n_stages,): sums, for ``workspace_bytes`` the greatest; of ``output_bytes``
        and ``loose_output_bytes`` those of the stage's last layer. Besides,
        ``own_output_bytes``, without skips that pass by, and ``input_bytes``, of the
        stage's first layer with the skips that come in.
    """
    starts, ends = np.array(cuts[:-1]), np.array(cuts[1:])
    sums = {
        name: np.add.reduceat(profile.column(name), starts)
        for name in (
            "forward",
            "backward_input",
            "backward_weight",
            "activation_bytes",
            "skip_bytes",
            "pending_bytes",
            "parameter_bytes",
            "optimizer_bytes",
        )
    }
    sums["workspace_bytes"] = np.maximum.reduceat(
        profile.column("workspace_bytes"), starts
    )
    for name in ("output_bytes", "loose_output_bytes"):
        sums[name] = profile.column(name)[ends - 1]
    passing = profile.column("passing_bytes")[ends - 1]
    sums["own_output_bytes"] = sums["output_bytes"] - passing
    # As :class:`divisible.stage_costs.StageCosts` reckons them.
    skips = np.minimum(np.concatenate([[0], passing[:-1]]), sums.pop("skip_bytes"))
    sums["input_bytes"] = skips + np.concatenate(
        [[profile.input_bytes], sums["own_output_bytes"][:-1]]
    )
    return sums


def stage_costs(
    plan: Plan,
    schedule: Schedule,
    profiles: Sequence[Profile],
    network: Network,
    speeds: PerRank | None = None,
) -> Costs:
    """Returns what the simulator needs to know of a plan.

    Args:
        plan: Where to cut.
        schedule: Which stage is on which rank.
        profiles: Of the model, one for each microbatch, at its size.
        network: The links between the ranks.
        speeds: Of the ranks.

    Returns:
        Costs: Stage costs of shape (n_stages, n_microbatches); bytes for the largest
        microbatch.
    """
    sizes = [profile.n_samples for profile in profiles]
    by_size = {
        size: stage_sums(profile, plan.cuts)
        for size, profile in dict(zip(sizes, profiles)).items()
    }
    ranks = np.array(schedule.stage_ranks)
    speed = spread_speeds(speeds, schedule.n_ranks)

    def per_microbatch(name: str) -> np.ndarray:
        table = np.stack([by_size[size][name] for size in sizes], axis=1)
        return table / speed[ranks][:, None]

    forward, backward_input, backward_weight = map(
        per_microbatch, ("forward", "backward_input", "backward_weight")
    )
    largest = by_size[max(sizes)]
    held = largest["activation_bytes"] + largest["loose_output_bytes"]
    links = edges(network, schedule)
    return Costs(
        forward,
        backward_input,
        backward_weight,
        transfer=largest["output_bytes"][:-1] / links.bandwidth,
        latency=links.latency,
        activation_bytes=largest["input_bytes"] + held,
        checkpoint_bytes=largest["input_bytes"],
        pending_bytes=largest["pending_bytes"],
    )


def edges(network: Network, schedule: Schedule) -> Network:
    """Returns the links between stages, from those between ranks.

    Ranks that are no neighbours talk over the links between them, at the rate of the
    slowest and with the greatest latency.
    """
    bandwidth, latency = network.edges(schedule.n_ranks)
    slowest, longest = [], []
    for a, b in zip(schedule.stage_ranks, schedule.stage_ranks[1:]):
        low, high = min(a, b), max(a, b)
        slowest.append(min(bandwidth[low:high], default=np.inf))
        longest.append(max(latency[low:high], default=0.0))
    return Network(np.array(slowest), np.array(longest), network.overlap)


def fixed_memory(plan: Plan, schedule: Schedule, profile: Profile) -> np.ndarray:
    """Returns what each rank holds besides microbatches in flight.

    These are parameters, gradients and the optimizer's state of its stages; and for
    the one that needs most its workspace and a message from either side.

    Args:
        plan: Where to cut.
        schedule: Which stage is on which rank.
        profile: At the size of the largest microbatch.

    Returns:
        Bytes of shape (n_ranks,).
    """
    sums = stage_sums(profile, plan.cuts)
    ranks = np.array(schedule.stage_ranks)
    passing = sums["workspace_bytes"] + sums["input_bytes"] + sums["own_output_bytes"]
    memory = np.zeros(schedule.n_ranks)
    np.maximum.at(memory, ranks, passing)
    np.add.at(memory, ranks, 2 * sums["parameter_bytes"] + sums["optimizer_bytes"])
    return memory.round().astype(np.int64)
