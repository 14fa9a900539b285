"""Predicts the times of a schedule: event simulation from measured times.

The model: a rank runs its actions in order; an action starts when the rank is free
and the result that it needs has arrived. A group sends the results of its microbatches
one after the other, when all are computed. A message of ``n`` bytes arrives
``latency + n / bandwidth`` seconds after it was sent, which is equation (1) of
Takisawa et al. (2022); with ``overlap=False``, GPipe and equal stages the makespan
is that paper's equation (3) for two stages.
"""

from __future__ import annotations

import heapq
from functools import partial

import numpy as np

from divisible.schedules.absences import Disks, conversions
from divisible.schedules.actions import FORWARD
from divisible.schedules.costs import Costs
from divisible.schedules.dependencies import (
    NONE,
    earliest_starts,
    other_rank_suppliers,
    receivers,
)
from divisible.schedules.events import CATEGORIES
from divisible.schedules.held import peaks
from divisible.schedules.lower_bound import lower_bound
from divisible.schedules.lowering import rendezvous_order
from divisible.schedules.minibatches import Updates, repeated, updates, with_updates
from divisible.schedules.schedule import Schedule
from divisible.schedules.timeline import Timeline
from divisible.schedules.weight_versions import n_copies

LINKS = ("parallel", "serial", "shared")


def simulate(
    schedule: Schedule,
    costs: Costs,
    overlap: bool = True,
    links: str = "parallel",
    n_minibatches: int = 1,
) -> Timeline:
    """Predicts when each action of a schedule runs.

    Args:
        schedule: The schedule; it is validated first.
        costs: Costs of stages and edges.
        overlap: Whether messages travel while ranks compute (receives posted ahead,
            sends that do not block). If not, a message starts when both ranks have
            come to it, and keeps both busy until it has arrived. The order is the one
            of `divisible.schedules.lowering.lower`. Sends and receives then show in the
            timeline.
        links: The sharing of links between messages, with ``overlap=True``. With
            ``'parallel'`` messages share nothing. With ``'serial'`` each pair of ranks
            has a link that carries one message at a time, in the order of sending;
            ``transfer`` occupies the link, ``latency`` does not. With ``'shared'`` all
            ranks together have one such link.
        n_minibatches: Number of minibatches that follow each other. A rank goes on
            with the next one after its own last action and update, whatever other
            ranks do (`divisible.schedules.minibatches`).

    Where costs have times of a disk, microbatches wait on the disk. The time that a
    rank waits for its disk is part of the action that needs or frees the microbatch.

    Returns:
        The predicted timeline, which starts at 0. It has a ``peak_memory``, and a
        ``bound`` that no order of the same actions goes below.

    Raises:
        ScheduleError: If the schedule cannot run.
        TypeError: If ``costs`` are not `Costs`.
        ValueError: If the costs do not fit the schedule or ``links`` is unknown.

    Example:
        >>> from divisible.schedules import gpipe
        >>> costs = Costs(forward=1.0, backward_input=1.0, backward_weight=1.0)
        >>> timeline = simulate(gpipe(n_stages=4, n_microbatches=8), costs)
        >>> timeline.makespan       # (m + d - 1) (F + B)
        33.0
        >>> timeline.bubble.round(3).tolist()
        [0.273, 0.273, 0.273, 0.273]
        >>> timeline.bound, round(timeline.gap, 3)       # if B may be split
        (27.0, 0.222)
        >>> from divisible.schedules import zero_bubble_h2
        >>> run = simulate(zero_bubble_h2(4, 8), costs, n_minibatches=10)
        >>> run.makespan, run.minibatch_seconds          # 27 s, were it alone
        (243.0, 24.0)
    """
    if links not in LINKS:
        raise ValueError(f"links must be one of {', '.join(LINKS)}, not {links!r}")
    if not overlap and links != "parallel":
        raise ValueError(
            f"links={links!r} needs overlap=True: without overlap each message "
            "already has both ranks to itself"
        )
    if not isinstance(costs, Costs):
        raise TypeError(f"costs must be Costs, not {type(costs).__name__}")
    write, read = costs.disk(schedule.n_stages)
    on_disk = write + read > 0
    if not overlap and on_disk.any():
        raise ValueError("times of a disk need overlap=True: it works meanwhile")
    single, schedule = schedule, repeated(schedule, n_minibatches)
    costs = costs.repeated(n_minibatches)
    schedule.validate()
    update = updates(schedule, costs, n_minibatches, single)
    duration = costs.durations_of(schedule)
    duration += conversions(schedule, *costs.conversion(schedule.n_stages))
    receiver, transfer, latency = results_sent(schedule, costs)
    columns = {
        "rank": schedule.action_ranks,
        "category": schedule.kind,
        "stage": schedule.stage,
        "kind": schedule.kind,
        "microbatch": schedule.microbatch,
        "count": schedule.count,
    }
    if not overlap:
        columns, begin = _run_rendezvous(
            schedule, columns, duration, receiver, transfer + latency, update
        )
    else:
        # Seconds for which a rank is busy after each action, while its result travels.
        pause = np.bincount(update.action, update.seconds, duration.size)
        if links == "parallel" and not on_disk.any():
            delay = transfer + latency - pause
            start = earliest_starts(schedule, duration + pause, delay)
            end = start + duration
        else:
            disks = Disks(schedule, write, read) if on_disk.any() else None
            link = _links(schedule, receiver, links)
            start, end = _run_events(
                schedule, duration, pause, receiver, transfer, latency, link, disks
            )
        columns.update(start=start, end=end)
        begin = end[update.action]
    columns, labels = with_updates(schedule, columns, update, begin)
    timeline = Timeline.from_arrays(
        **columns, n_ranks=schedule.n_ranks, name=schedule.name, labels=labels
    )
    timeline.n_minibatches = n_minibatches
    units = costs.units(schedule.n_stages)
    saved = costs.saved_bytes(schedule.n_stages)
    copies = n_copies(single) * costs.copy_bytes(schedule.n_stages)
    timeline.peak_memory = np.array(peaks(schedule, *units, on_disk, saved))
    np.add.at(
        timeline.peak_memory, list(schedule.stage_ranks), copies.round().astype(int)
    )
    timeline.find_bound = partial(lower_bound, schedule, costs, overlap, links)
    return timeline


def results_sent(
    schedule: Schedule, costs: Costs
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns where the result of each action goes, and the time that it takes.

    Args:
        schedule: The schedule.
        costs: Costs of the edges.

    Returns:
        For each action the rank to which its result is sent, or -1 if it stays; the
        seconds of ``transfer``, and those of ``latency``, which are 0 if it stays.

    Example:
        >>> schedule = Schedule([["0F0", "0B0"], ["1F0", "1B0"]])
        >>> [each.tolist() for each in results_sent(schedule, Costs(1, 1, 1, 2, 3))]
        [[1, -1, -1, 0], [2.0, 0.0, 0.0, 2.0], [3.0, 0.0, 0.0, 3.0]]
    """
    receiver = receivers(schedule)
    # Going back, the edge of a result lies before its stage; going forward, behind it.
    edge = schedule.stage - (schedule.kind != FORWARD)
    edge[receiver == NONE] = 0
    transfer, latency = (
        np.where(receiver == NONE, 0.0, per_edge)
        for per_edge in _per_action(schedule, costs, edge)
    )
    return receiver, transfer, latency


def _per_action(
    schedule: Schedule, costs: Costs, edge: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the transfer and the latency of the edge of each action's result."""
    forward, backward = (costs.edges(schedule.n_stages, way) for way in (True, False))
    if schedule.n_stages == 1:
        return np.zeros(edge.size), np.zeros(edge.size)
    is_forward = schedule.kind == FORWARD
    transfer, latency = (
        np.where(is_forward, ahead[edge], back[edge])
        for ahead, back in zip(forward, backward)
    )
    return transfer, latency


def _links(schedule: Schedule, receiver: np.ndarray, links: str) -> np.ndarray:
    """Returns for each action the link that carries its result."""
    rank = schedule.action_ranks
    if links == "parallel":
        return np.arange(rank.size)
    return (
        np.zeros_like(rank) if links == "shared" else rank * schedule.n_ranks + receiver
    )


def _run_events(
    schedule: Schedule,
    duration: np.ndarray,
    pause: np.ndarray,
    receiver: np.ndarray,
    transfer: np.ndarray,
    latency: np.ndarray,
    link: np.ndarray,
    disks: Disks | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Runs events in the order of time, because a link serves the first message first.

    Returns:
        The start of each action, and the end of each action.
    """
    needed, duration, pause, receiver, transfer, latency, link = (
        column.tolist()
        for column in (
            other_rank_suppliers(schedule),
            duration,
            pause,
            receiver,
            transfer,
            latency,
            link,
        )
    )
    # The actions that need each result. A group needs that of its last microbatch.
    consumers: list[list[int]] = [[] for _ in needed]
    for action, need in enumerate(needed):
        if need != NONE:
            consumers[need].append(action)
    first, count = schedule.microbatch.tolist(), schedule.count.tolist()
    start, end = [0.0] * len(needed), [0.0] * len(needed)
    arrival = [0.0 if need == NONE else None for need in needed]
    free: list[float | None] = [None] * len(needed)
    link_free: dict[int, float] = {}
    finished: list[tuple[float, int]] = []
    firsts = schedule.offsets[:-1][np.diff(schedule.offsets) > 0].tolist()
    lasts = set((schedule.offsets[1:] - 1).tolist())

    def start_if_ready(action: int) -> None:
        since, arrived = free[action], arrival[action]
        if since is not None and arrived is not None:
            start[action] = now = max(since, arrived)
            if disks is not None:
                now = disks.before(action, now)
            now += duration[action]
            if disks is not None:
                now = disks.after(action, now)
            end[action] = now
            heapq.heappush(finished, (now, action))

    for action in firsts:
        free[action] = 0.0
        start_if_ready(action)
    while finished:
        now, action = heapq.heappop(finished)
        # A group waits for the message of its last microbatch, but all occupy the link.
        if receiver[action] != NONE:
            begin = max(now, link_free.get(link[action], 0.0))
            link_free[link[action]] = begin + count[action] * transfer[action]
            for user in consumers[action]:
                last = min(first[user] + count[user], first[action] + count[action])
                sent = begin + (last - first[action]) * transfer[action]
                arrival[user] = sent + latency[action]
                start_if_ready(user)
        if action not in lasts:
            free[action + 1] = now + pause[action]
            start_if_ready(action + 1)
    return np.array(start), np.array(end)


def _run_rendezvous(
    schedule: Schedule,
    columns: dict[str, np.ndarray],
    duration: np.ndarray,
    receiver: np.ndarray,
    seconds: np.ndarray,
    update: Updates,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Runs computations and messages in the one order that all programs agree with.

    Returns:
        The columns of all events but the updates, those of each rank in the order of
        its program; and the starts of the updates.
    """
    rank, n = columns["rank"], duration.size
    compute, message = rendezvous_order(schedule)
    sent = np.flatnonzero(receiver != NONE)
    # The two ranks that each computation, message or update occupies, and for how long.
    # An update comes after the last message of its step.
    updated = rank[update.action]
    after = compute[update.action] + 2 * schedule.n_stages + 0.5
    one = np.concatenate([rank, rank[sent], updated]).tolist()
    other = np.concatenate([rank, receiver[sent], updated]).tolist()
    took = np.concatenate(
        [duration, seconds[sent] * schedule.count[sent], update.seconds]
    )
    place = np.concatenate([compute, message[sent], after])
    start, free, lasts = [0.0] * len(one), [0.0] * schedule.n_ranks, took.tolist()
    for number in np.argsort(place, kind="stable").tolist():
        a, b = one[number], other[number]
        start[number] = max(free[a], free[b])
        free[a] = free[b] = start[number] + lasts[number]
    columns = {
        name: np.concatenate([column, column[sent], column[sent]])
        for name, column in columns.items()
    }
    columns["rank"][n + sent.size :] = receiver[sent]
    columns["category"][n:] = np.repeat(
        [CATEGORIES.index("send"), CATEGORIES.index("receive")], sent.size
    )
    columns["peer"] = np.concatenate(
        [np.full(n, NONE, np.int64), receiver[sent], rank[sent]]
    )
    # A message shows on both of its ranks.
    both = np.concatenate([np.arange(n + sent.size), np.arange(n, n + sent.size)])
    columns["start"] = np.array(start)[both]
    columns["end"] = columns["start"] + took[both]
    order = np.lexsort((place[both], columns["rank"]))
    columns = {name: column[order] for name, column in columns.items()}
    return columns, np.array(start[n + sent.size :])
