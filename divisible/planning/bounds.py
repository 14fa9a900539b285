"""The least that a step can take, without a simulation."""

from __future__ import annotations

import numpy as np

from divisible.schedules.absences import absences
from divisible.schedules.actions import BACKWARD, FORWARD, INPUT
from divisible.schedules.costs import Costs
from divisible.schedules.schedule import Schedule


def busy_seconds(schedule: Schedule, costs: Costs) -> np.ndarray:
    """Returns how long each rank computes in a step."""
    durations = costs.durations(schedule.n_stages, schedule.n_microbatches)
    return np.bincount(
        np.array(schedule.stage_ranks)[schedule.stage],
        weights=durations[schedule.kind, schedule.stage, schedule.microbatch],
    )


def lower_bound(schedule: Schedule, costs: Costs, after: np.ndarray) -> float:
    """Returns what a step takes at least.

    A rank waits for the first microbatch to come through the stages before its own.
    It computes all of its own; then, unless it ends with weight gradients, the last
    backward has to go through the stages before. Meanwhile it exchanges gradients.

    Args:
        schedule: What the ranks run.
        costs: Of the stages.
        after: Seconds that each rank takes at least after its last backward.
    """
    d, m = schedule.n_stages, schedule.n_microbatches
    durations = costs.durations(d, m)
    forward, whole = durations[FORWARD], durations[BACKWARD]
    ranks = np.array(schedule.stage_ranks)
    split = bool((schedule.kind == INPUT).any())
    busy = busy_seconds(schedule, costs)
    # A rank is on its way in when its first stage is reached, and out after that one.
    entry = np.concatenate([[0.0], np.cumsum(forward.min(axis=1))])[:-1]
    leave = np.concatenate([[0.0], np.cumsum(whole.min(axis=1))])[:-1]
    firsts = np.array([ranks.tolist().index(r) for r in range(schedule.n_ranks)])
    ways = entry[firsts] + np.maximum(after, 0.0 if split else leave[firsts])
    transfer, _ = costs.edges(d)
    least = (
        (busy + ways).max(),
        m * transfer.max(initial=0.0),
        _disk_seconds(schedule, costs),
    )
    return float(max(least))


def _disk_seconds(schedule: Schedule, costs: Costs) -> float:
    """Returns how long the busiest disk works."""
    write, read = costs.disk(schedule.n_stages)
    if not (write + read).any():
        return 0.0
    leaves, _ = absences(schedule, write + read > 0)
    stage = schedule.stage[leaves]
    work = np.bincount(schedule.action_ranks[leaves], weights=(write + read)[stage])
    return float(work.max(initial=0.0))
