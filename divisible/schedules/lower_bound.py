"""The least time of a schedule's actions: a bound that no order of them beats.

Each action has a *head* and a *tail*. The head is the least time from the start of the
step to the start of the action. The tail is the least time from its end to the end of
the step::

    head: longest way here           tail: longest way from here
    0F0 -> 1F0 -> 2F0 -> 2I0 -> |1I0| -> 0I0 -> 0W0

Proof of the bound. Choose some actions of one rank. The first of them starts no earlier
than the least of their heads. The rank runs one at a time, so the last of them ends no
earlier than all their durations later. Then the least of their tails is still to come::

    makespan >= least head + sum of the durations + least tail

The bound is the greatest such sum of any rank and any choice of actions. Choices of all
actions with a head and a tail of at least some values suffice: more actions between the
same heads and tails only add durations. A single action is a choice, so the longest
path through the step is no greater than the bound. Where messages occupy a link, or
both of their ranks, they count like actions of the link or of these ranks.

A whole backward (B) counts as I and W, because other schedules may split it. The bound
knows neither memory nor disks nor updates, which only make a step longer.

Source: Carlier, The one-machine sequencing problem, European Journal of Operational
Research 11, 1982, proposition 1, for each rank; the greatest sum is that of Jackson's
preemptive schedule.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from divisible.schedules.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from divisible.schedules.costs import Costs
from divisible.schedules.dependencies import NONE, locate
from divisible.schedules.table import Table


class Precedences(NamedTuple):
    """Pairs of actions of which one needs the result of the other.

    A pair stands here once for each microbatch.

    Attributes:
        source: The number of the action that comes first.
        target: The number of the action that needs its result.
        edge: The edge between stages over which the result travels to another rank, or
            `NONE`.
    """

    source: np.ndarray
    target: np.ndarray
    edge: np.ndarray


def lower_bound(
    schedule: Table,
    costs: Costs,
    overlap: bool = True,
    links: str = "parallel",
    after: ArrayLike = 0.0,
) -> float:
    """Returns seconds that no order of a schedule's actions goes below.

    The module has the proof.

    Args:
        schedule: A valid schedule. Its stages, their ranks, its groups and its
            recomputations are kept; the order of its actions does not matter.
        costs: Costs of stages and edges.
        overlap: See `divisible.schedules.simulator.simulate`.
        links: See `divisible.schedules.simulator.simulate`.
        after: Seconds that the step goes on after the last action of each rank, such as
            those of an exchange of gradients: one number, or one for each rank.

    Returns:
        The bound in seconds, up to rounding.

    Example:
        >>> from divisible.schedules import one_f_one_b
        >>> costs = Costs(forward=1.0, backward_input=1.0, backward_weight=1.0)
        >>> lower_bound(one_f_one_b(n_stages=4, n_microbatches=8), costs)  # ZB-H1's
        27.0
    """
    halves = split_backwards(schedule)
    duration = costs.durations_of(halves)
    pairs = precedences(halves)
    transfer, latency = message_seconds(pairs, costs, halves)
    lag = transfer + latency
    head = longest_ways(pairs.source, pairs.target, lag, duration)
    tail = longest_ways(pairs.target, pairs.source, lag, duration)
    rank = halves.action_ranks
    tail = np.maximum(tail, np.broadcast_to(after, halves.n_ranks)[rank])
    best = greatest_sum(rank, head, duration, tail)
    if overlap and links == "parallel":
        return best
    sent = np.flatnonzero(pairs.edge != NONE)
    source, target = pairs.source[sent], pairs.target[sent]
    ready = head[source] + duration[source]
    rest = duration[target] + tail[target]
    if overlap:
        link = rank[source] * halves.n_ranks + rank[target]
        if links == "shared":
            link[:] = 0
        rest += latency[sent]
        return max(best, greatest_sum(link, ready, transfer[sent], rest))
    return greatest_sum(
        np.concatenate([rank, rank[source], rank[target]]),
        np.concatenate([head, ready, ready]),
        np.concatenate([duration, lag[sent], lag[sent]]),
        np.concatenate([tail, rest, rest]),
    )


def above(gap: float) -> str:
    """Returns how far a schedule is above its bound, as text.

    Args:
        gap: The part by which it is longer.

    Example:
        >>> above(0.0301), above(0.0)
        ('at most 3.1% above the bound', 'at most 0.0% above the bound')
    """
    # Rounded up, so that the text holds; a thousandth of a percent is a solver's
    # rounding.
    thousandths = math.ceil(1000 * gap - 1e-2)
    return f"at most {thousandths / 10:.1f}% above the bound"


def split_backwards(schedule: Table) -> Table:
    """Returns the same actions with an I and a W for each B.

    Args:
        schedule: Any schedule.
    """
    is_whole = schedule.kind == BACKWARD
    action = np.repeat(np.arange(is_whole.size), 1 + is_whole)
    kind = schedule.kind[action]
    second = np.flatnonzero(np.diff(action) == 0) + 1
    kind[second - 1], kind[second] = INPUT, WEIGHT
    return Table(
        schedule.stage[action],
        kind,
        schedule.microbatch[action],
        np.searchsorted(action, schedule.offsets),
        schedule.stage_ranks,
        schedule.n_microbatches,
        schedule.name,
        schedule.count[action],
    )


def precedences(halves: Table) -> Precedences:
    """Finds which actions need which, whatever the order on their ranks.

    Args:
        halves: A valid schedule without B.

    Returns:
        The pairs of actions.

    Example:
        >>> from divisible.schedules import Schedule
        >>> schedule = Schedule([["0F0", "0I0", "0W0"], ["1F0", "1I0", "1W0"]])
        >>> for source, target, edge in zip(*precedences(schedule)):
        ...     print(schedule.action(source), schedule.action(target), edge)
        0F0 1F0 0
        1I0 0I0 0
        0I0 0W0 -1
        1I0 1W0 -1
        1F0 1I0 -1
    """
    forward, backward, weight, again = locate(halves)
    ranks = np.array(halves.stage_ranks)
    # The edge behind each stage but the last one.
    edge = np.where(ranks[1:] == ranks[:-1], NONE, np.arange(ranks.size - 1))
    inside = np.full(ranks.size, NONE)
    rows = [
        (forward[:-1], forward[1:], edge),
        (backward[1:], backward[:-1], edge),
        (backward, weight, inside),
        (forward, again, inside),
        (again, backward, inside),
        (forward[-1:], backward[-1:], inside[-1:]),
    ]
    source, target, each = (
        np.concatenate([part.ravel() for part in parts])
        for parts in zip(
            *(
                (one, other, np.repeat(along, one.shape[1]))
                for one, other, along in rows
            )
        )
    )
    there = (source != NONE) & (target != NONE)
    return Precedences(source[there], target[there], each[there])


def message_seconds(
    pairs: Precedences, costs: Costs, halves: Table
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the transfer and the latency of each pair's message, 0 without one.

    Args:
        pairs: The pairs, of :func:`precedences`.
        costs: Costs of stages and edges.
        halves: The schedule of the pairs.
    """
    is_forward = halves.kind[pairs.source] == FORWARD
    forward, backward = (
        # The last entry is read where there is no message.
        [np.append(each, 0.0)[pairs.edge] for each in costs.edges(halves.n_stages, way)]
        for way in (True, False)
    )
    transfer, latency = (
        np.where(is_forward, ahead, back) for ahead, back in zip(forward, backward)
    )
    return transfer, latency


def longest_ways(
    source: np.ndarray, target: np.ndarray, lag: np.ndarray, duration: np.ndarray
) -> np.ndarray:
    """Returns the longest way to each action from actions that need no other one.

    Args:
        source: The action at which each edge begins; there is no circle.
        target: The action at which each edge ends.
        lag: Seconds between the two.
        duration: Seconds of each action.

    Returns:
        Seconds from the beginning to the start of each action. With ``source`` and
        ``target`` exchanged, seconds from the end of each action to the end.

    Example:
        >>> ways = longest_ways(
        ...     np.array([0, 0, 1]), np.array([1, 2, 2]), np.zeros(3), np.ones(3))
        >>> ways.tolist()
        [0.0, 1.0, 2.0]
    """
    n = duration.size
    order = np.argsort(source, kind="stable")
    source, target, lag = source[order], target[order], lag[order]
    begin = np.searchsorted(source, np.arange(n + 1))
    way, missing = np.zeros(n), np.bincount(target, minlength=n)
    ready = np.flatnonzero(missing == 0)
    while ready.size:
        # The edges of an action lie together.
        count = begin[ready + 1] - begin[ready]
        first = np.cumsum(count) - count
        out = np.repeat(begin[ready] - first, count) + np.arange(count.sum())
        one, other = source[out], target[out]
        np.maximum.at(way, other, way[one] + duration[one] + lag[out])
        np.subtract.at(missing, other, 1)
        ready = np.unique(other[missing[other] == 0])
    return way


def greatest_sum(
    machine: np.ndarray, head: np.ndarray, work: np.ndarray, tail: np.ndarray
) -> float:
    """Returns the bound of machines that do one thing at a time.

    Args:
        machine: The machine of each piece of work, such as its rank.
        head: Seconds before each can start.
        work: Seconds that it takes.
        tail: Seconds that remain after it.

    Returns:
        The greatest least head + sum of the work + least tail, of any choice of work of
        one machine; 0 without work.

    Example:
        >>> greatest_sum(np.array([0, 0]), [0.0, 5.0], np.array([2.0, 1.0]), [4.0, 0.0])
        6.0
    """
    # Equal microbatches have the same heads and tails, so few pieces remain.
    places = np.stack([machine, head, tail], axis=1)
    places, piece = np.unique(places, axis=0, return_inverse=True)
    work = np.bincount(piece.ravel(), work, minlength=len(places))
    best = 0.0
    for part in np.split(
        np.arange(len(places)), np.flatnonzero(np.diff(places[:, 0])) + 1
    ):
        # From the latest head to the earliest.
        part = part[::-1]
        head, tail, seconds = places[part, 1], places[part, 2], work[part]
        for least in np.unique(tail).tolist():
            chosen = tail >= least
            sums = head[chosen] + np.cumsum(seconds[chosen])
            best = max(best, float(sums.max()) + least)
    return best
