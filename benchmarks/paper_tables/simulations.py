"""What the simulator makes of a step, before it runs and after."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING

import numpy as np
from _hosts import Hosts

from divisible import Network, Plan, Profile
from divisible.layer_costs import interpolate
from paper_tables.models import transfers
from paper_tables.quota import Quota, repeated
from paper_tables.samples import Sample

if TYPE_CHECKING:
    from pipeline import Costs, Schedule, Timeline

#: What a stage does with a microbatch, in the order of `pipeline.Costs`, and what of it
#: is in the phases of a timeline: F, I and W, or B if that is not split.
PHASES = ("forward", "backward_input", "backward_weight")
PARTS = {"F": PHASES[:1], "B": PHASES[1:], "I": PHASES[1:2], "W": PHASES[2:]}
#: How often stops are drawn, and how often it is asked for them how long hosts wait.
DRAWS, WAITING_ROUNDS = 5, 3


def busy_speeds(sample: Sample, profiles: list[Profile]) -> np.ndarray:
    """Returns how fast each busy host was before a step, where a whole core has 1.

    They differ where microbatches are small: hosts with small stages are slower, and a
    mean of all would be too slow for the stage that the others wait for.
    """
    # Without the loss, which busy hosts did not run.
    layers = interpolate(profiles, sample.probed).layers
    seconds = [
        sum(layer.seconds for layer in layers[start:end])
        for start, end in zip(sample.cuts, sample.cuts[1:])
    ]
    if sample.pages is None:
        # In older ones the hosts may have run other stages than in the step.
        return np.full(len(seconds), sum(seconds) / sum(sample.busy))
    return np.divide(seconds, sample.busy)


def predict(sample: Sample, profiles: list[Profile], hosts: Hosts) -> float:
    """Simulates a step before it runs.

    What the profiles say is divided by the speed that each host has while all are busy.
    While others wait it is faster, because it shares caches and cores with fewer. And
    one that waits at times is faster itself, because it has quota left when its turn
    comes, as `Quota` says. How long hosts wait says the simulation itself, and so it
    does whether a host goes on to compute before its message has left. Besides, phases
    vary as much as those of busy hosts did.

    Returns:
        Seconds, on average over `DRAWS` simulations.
    """
    from pipeline.planning import prediction

    point, n_stages = sample.point, len(sample.cuts) - 1
    speeds = busy_speeds(sample, profiles)
    plan = Plan(sample.cuts, n_microbatches=point.microbatches, schedule=point.schedule)
    schedule = _schedule(sample)
    sizes = prediction.microbatch_sizes(point.batch, point.microbatches)
    network = Network(hosts.bandwidth, sample.delay)
    busy = prediction.stage_costs(plan, schedule, profiles, sizes, network, speeds)
    shape = n_stages, point.microbatches
    times = {name: np.broadcast_to(getattr(busy, name), shape) for name in PHASES}
    variance = _unexplained_variance(sample, hosts.share)[:, np.newaxis]
    random = np.random.RandomState(0)
    makespans = []
    for _ in range(DRAWS):
        timeline = prediction.run(schedule, busy, network)
        varied = {
            name: random.gamma(1 / variance, variance, shape) * seconds
            for name, seconds in times.items()
        }
        for _ in range(WAITING_ROUNDS):
            shared = _in_company(varied, timeline, sample.alone)
            costs = _with_stops(busy, shared, timeline, hosts.share, random)
            costs = _with_delays(costs, timeline, sample)
            timeline = prediction.run(schedule, costs, network)
        makespans.append(timeline.makespan)
    return statistics.fmean(makespans)


def _unexplained_variance(sample: Sample, share: float) -> np.ndarray:
    """Returns the variance of each busy stage's phases that no quota explains.

    Each stage has its own: the phases of the smallest may vary by more than they take.

    Args:
        sample: Of the step.
        share: Of a core that each host has.

    Returns:
        As parts of their means squared.
    """
    # Backward takes about twice as long as forward.
    forward = share * np.array(sample.busy) / 3
    explained = [repeated(share, [seconds, 2 * seconds])[1] for seconds in forward]
    return np.maximum(np.square(sample.spread) - np.square(explained), 1e-12)


def _in_company(
    times: dict[str, np.ndarray], timeline: Timeline, alone: float | list[float]
) -> dict[str, np.ndarray]:
    """Returns what phases take with as many others at work as in a timeline.

    Args:
        times: Seconds of the phases if all others are.
        timeline: Of the same schedule.
        alone: What they take of that if none is: on each stage, or on all.
    """
    if timeline.n_ranks == 1:
        return times
    events = [
        event
        for rank in range(timeline.n_ranks)
        for event in timeline.rank_events(rank)
        if event.category in PARTS
    ]
    start, end = np.array([(event.start, event.end) for event in events]).T
    # How many are at work from each of these on, and how much all have done by then.
    when = np.concatenate([start, end])
    order = np.argsort(when, kind="stable")
    when = when[order]
    at_work = np.cumsum(np.repeat([1, -1], len(events))[order])
    done = np.concatenate([[0.0], np.cumsum(at_work[:-1] * np.diff(when))])
    own = end - start
    all_done = np.interp(end, when, done) - np.interp(start, when, done)
    others = np.divide(all_done - own, own, out=np.zeros_like(own), where=own > 0)
    stages = [event.what.stage for event in events]
    least = np.broadcast_to(alone, timeline.n_ranks)[stages]
    factors = least + (1.0 - least) * others / (timeline.n_ranks - 1)
    found = {name: seconds.copy() for name, seconds in times.items()}
    for event, factor in zip(events, factors):
        for name in PARTS[event.category]:
            found[name][event.what.stage, event.what.microbatch] *= factor
    return found


def _with_stops(
    costs: Costs,
    times: dict[str, np.ndarray],
    timeline: Timeline,
    share: float,
    random: np.random.RandomState,
) -> Costs:
    """Returns what phases take that begin when they do in a timeline.

    Args:
        costs: Of which the messages are kept.
        times: Seconds of the phases with as many stops as the share of a core says.
        timeline: Of the same schedule.
        share: Of a core that each host has.
        random: Where ticks fall.
    """
    found = {name: np.zeros_like(seconds) for name, seconds in times.items()}
    for rank in range(timeline.n_ranks):
        quota, end = Quota(share, random), 0.0
        for event in timeline.rank_events(rank):
            parts = PARTS.get(event.category)
            if parts is None:
                continue
            quota.rest(event.start - end)
            end = event.end
            at = rank, event.what.microbatch
            seconds = sum(times[name][at] for name in parts)
            factor = quota.run(seconds * share) / seconds if seconds else 1.0
            for name in parts:
                found[name][at] = factor * times[name][at]
    return dataclasses.replace(costs, **found)


def _with_delays(costs: Costs, timeline: Timeline, sample: Sample) -> Costs:
    """Returns costs with the delays of messages whose senders do as in a timeline.

    A large message moves only when its sender looks. It has left if the sender waits
    for as long as it takes then; otherwise it is late. Of a link counts the mean.

    Args:
        costs: Of which all else is kept.
        timeline: Of the same schedule.
        sample: With either delay of each link.
    """
    if not sample.idle_delay:
        return costs
    idle, late = np.array(sample.idle_delay), np.array(sample.delay)
    needed = (costs.transfer + idle) * (1 - 1e-6)
    n_sent, n_late = np.zeros_like(idle), np.zeros_like(idle)
    for rank in range(timeline.n_ranks):
        events = [e for e in timeline.rank_events(rank) if e.category in PARTS]
        starts = [event.start for event in events[1:]] + [np.inf]
        for event, following in zip(events, starts):
            link = rank if event.category == "F" else rank - 1
            if event.category != "W" and 0 <= link < len(idle):
                n_sent[link] += 1
                n_late[link] += following - event.end < needed[link]
    part = n_late / n_sent
    return dataclasses.replace(costs, latency=part * late + (1 - part) * idle)


def simulate(sample: Sample, profiles: list[Profile], hosts: Hosts) -> float:
    """Simulates a step from the seconds of its phases and of its messages."""
    from pipeline import Costs
    from pipeline.planning import prediction

    transfer = transfers(sample.point, sample.cuts, profiles, hosts)
    network = Network(hosts.bandwidth, sample.latency)
    times = (getattr(sample, name) for name in PHASES)
    costs = Costs(*times, transfer=transfer, latency=sample.latency)
    return prediction.run(_schedule(sample), costs, network).makespan


def _schedule(sample: Sample) -> Schedule:
    from pipeline import schedules

    point, n_stages = sample.point, len(sample.cuts) - 1
    return schedules.create(point.schedule, n_stages, point.microbatches)
