"""What the simulator makes of a step: by other steps of the same hosts, by its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.common.hosts import Hosts
from benchmarks.paper_tables.models import transfers
from benchmarks.paper_tables.points import Point
from benchmarks.paper_tables.samples import Sample
from divisible import Network, Plan, Profile
from divisible.planning.interpolation import interpolate

if TYPE_CHECKING:
    from divisible.schedules import Costs, Schedule

#: What a stage does with a microbatch, in the order of `divisible.schedules.Costs`.
PHASES = ("forward", "backward_input", "backward_weight")


def simulate(
    point: Point,
    cuts: list[int],
    others: Mapping[int, Sample],
    profiles: list[Profile],
    hosts: Hosts,
) -> float:
    """Simulates a step from profiles, and from how fast the hosts were in others.

    A host with a part of a core takes longer than a whole core's time divided by that
    part: it finds its caches cold whenever its turn comes, more often so the shorter
    its phases are. Nor does it get its share evenly. So the profiles say how layers
    compare, and the steps with the next fewer and the next more microbatches how much
    slower than by the profiles the stage of each layer was, which may have had others
    beside it, and how long messages were under way::

        slowness of a layer, latency
          |     x
          |        `-.
          |           o.            x  measured      o  taken for this step
          |              `-x
          +-----+-----+-----+---->  microbatches, logarithmic

    Where there are only fewer, or only more, those of the nearest count.

    Phases vary: all stages wait for the longest, so a step takes longer than if all
    took their mean. It is simulated with phases that vary as those of one of the two
    steps, and as those of the other, and what it takes lies between these as well.

    Args:
        point: What to simulate.
        cuts: Where the model is cut for it.
        others: Measured steps by their number of microbatches, one at least: of the
            same model, hosts, kind of cut and schedule. This point's own is not used.
        profiles: Of the layers, on a whole core.
        hosts: Where it runs.

    Returns:
        Seconds.
    """
    from divisible.planning import prediction

    m = point.microbatches
    nearest = [
        *sorted((n for n in others if n < m), reverse=True)[:1],
        *sorted(n for n in others if n > m)[:1],
    ]
    weights = _weights(m, nearest)
    layers = [layer_slowness(others[n], profiles) for n in nearest]
    slow = on_stages(np.dot(weights, layers), point, cuts, profiles)
    latency = float(np.dot(weights, [others[n].latency for n in nearest]))
    network = Network(hosts.bandwidth, max(0.0, latency))
    schedule = _schedule(point, cuts)
    costs = _costs(point, cuts, schedule, profiles, network, 1.0 / slow)
    costs = replace(costs, transfer=_shortened(costs.transfer, latency))
    seconds = []
    for n in nearest:
        varied = _varied(costs, others[n], point, cuts, profiles)
        seconds.append(prediction.run(schedule, varied, network).makespan)
    return float(np.dot(weights, seconds))


def replay(sample: Sample, profiles: list[Profile], hosts: Hosts) -> float:
    """Simulates a step from the seconds of its own phases and messages.

    This says whether the simulator runs a schedule as the ranks do, not what to expect
    of a step.

    Args:
        sample: The step.
        profiles: Of the layers, which say how large messages are.
        hosts: Where it ran.
    """
    from divisible.planning import prediction
    from divisible.schedules import Costs

    transfer = transfers(sample.point, sample.cuts, profiles, hosts)
    transfer = _shortened(transfer, sample.latency)
    network = Network(hosts.bandwidth, max(0.0, sample.latency))
    times = (getattr(sample, name) for name in PHASES)
    costs = Costs(*times, transfer=transfer, latency=network.latency)
    schedule = _schedule(sample.point, sample.cuts)
    return prediction.run(schedule, costs, network).makespan


def whole_core_seconds(sample: Sample, profiles: list[Profile]) -> np.ndarray:
    """Returns what each stage would take in a step by the profiles, on a whole core."""
    schedule = _schedule(sample.point, sample.cuts)
    costs = _costs(sample.point, sample.cuts, schedule, profiles, Network(), 1.0)
    return sum(getattr(costs, name).sum(axis=1) for name in PHASES)


def layer_slowness(sample: Sample, profiles: list[Profile]) -> np.ndarray:
    """Returns how much slower than by the profiles each layer was: as was its stage."""
    slow = stage_seconds(sample) / whole_core_seconds(sample, profiles)
    return np.repeat(slow, np.diff(sample.cuts))


def on_stages(
    slow: np.ndarray, point: Point, cuts: list[int], profiles: list[Profile]
) -> np.ndarray:
    """Returns how much slower than by the profiles stages are, from their layers.

    Args:
        slow: How much slower each layer is, or is in each of several phases.
        point: Whose microbatches they run.
        cuts: Between the stages.
        profiles: Of the layers.
    """
    layers = interpolate(profiles, point.samples).layers
    seconds = np.array([layer.seconds for layer in layers])
    starts = cuts[:-1]
    slower = np.add.reduceat(seconds * slow.T, starts, axis=-1)
    return (slower / np.add.reduceat(seconds, starts)).T


def stage_seconds(sample: Sample) -> np.ndarray:
    """Returns what each stage took in a step, with messages between its phases."""
    means = [_of_stages(sample, name).mean(axis=1) for name in PHASES]
    return sample.point.microbatches * sum(means)


def _of_stages(sample: Sample, name: str) -> np.ndarray:
    """Returns the seconds of a phase on each stage, of each microbatch.

    Older samples have the means of the stages, as if of one microbatch.
    """
    return np.reshape(getattr(sample, name), (len(sample.cuts) - 1, -1))


def _shortened(transfer: Sequence[float], latency: float) -> np.ndarray:
    """Returns what is left of transfers where a latency is negative."""
    return np.maximum(0.0, np.asarray(transfer) + min(0.0, latency))


def _varied(
    costs: Costs, other: Sample, point: Point, cuts: list[int], profiles: list[Profile]
) -> Costs:
    """Returns costs that vary over the microbatches as in another step.

    A microbatch differs from the mean of its stage as does the one at the same part of
    the other step, where hosts may have waited for each other in the same way.
    """
    forward, backward, weight = (_of_stages(other, name) for name in PHASES)
    # Unsplit backwards count as input gradients.
    phases = forward, backward, weight if weight.any() else backward
    found, m = {}, point.microbatches
    for name, seconds in zip(PHASES, phases):
        same_part = np.arange(m) * seconds.shape[1] // m
        chosen, means = seconds[:, same_part], seconds.mean(axis=1, keepdims=True)
        # Weight gradients of a stage without weights take no time.
        relative = np.divide(chosen, means, np.ones_like(chosen), where=means > 0)
        layers = np.repeat(relative, np.diff(other.cuts), axis=0)
        varied = on_stages(layers, point, cuts, profiles)
        found[name] = getattr(costs, name) * varied
    return replace(costs, **found)


def _weights(m: int, nearest: list[int]) -> np.ndarray:
    """Returns the weights of one or two measured steps, linear in the logarithm."""
    if len(nearest) == 1:
        return np.ones(1)
    fewer, more = np.log(nearest)
    weight = (np.log(m) - fewer) / (more - fewer)
    return np.array([1.0 - weight, weight])


def _costs(
    point: Point,
    cuts: list[int],
    schedule: Schedule,
    profiles: list[Profile],
    network: Network,
    speeds: np.ndarray | float,
) -> Costs:
    from divisible.planning import prediction

    m = point.microbatches
    plan = Plan(cuts, n_microbatches=m, schedule=point.schedule)
    sizes = prediction.microbatch_sizes(point.batch, m)
    sized = {size: interpolate(profiles, size) for size in set(sizes)}
    each = [sized[size] for size in sizes]
    return prediction.stage_costs(plan, schedule, each, network, speeds)


def _schedule(point: Point, cuts: list[int]) -> Schedule:
    from divisible import schedules

    return schedules.create(point.schedule, len(cuts) - 1, point.microbatches)
