"""The least seconds that a step can take, without a simulation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from divisible.planning.cost_model import CostModel
from divisible.schedules.absences import absences
from divisible.schedules.actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    KINDS,
    RECOMPUTE,
    WEIGHT,
)
from divisible.schedules.stage_groups import stage_group_sizes


def work_of_ranks(model: CostModel, cuts: Sequence[int]) -> np.ndarray:
    """Returns the work of each rank in a step, in seconds at speed 1.

    Args:
        model: The costs of the stages.
        cuts: Positions of the cuts in the model.
    """
    first = np.unique(model.schedule.stage_ranks, return_index=True)[1]
    return _busy_seconds(model, _durations(model, cuts)) * model.speeds[first]


def lower_bound(model: CostModel, cuts: Sequence[int]) -> float:
    """Returns the seconds that a step takes at least.

    A rank waits for the first microbatch to come through the stages before its own. The
    rank computes all its actions. Unless it ends with weight gradients, the last
    backward then has to go through the stages before. Meanwhile the rank exchanges
    gradients. If minibatches overlap, only the actions count.

    Args:
        model: The costs of the stages.
        cuts: Positions of the cuts in the model.
    """
    schedule = model.schedule
    durations = _durations(model, cuts)
    forward, whole = durations[FORWARD], durations[BACKWARD]
    ranks = np.array(schedule.stage_ranks)
    split = bool((schedule.kind == INPUT).any())
    busy = _busy_seconds(model, durations)
    # A microbatch reaches a rank with the rank's first stage, and leaves after that
    # one.
    entry = np.concatenate([[0.0], np.cumsum(forward.min(axis=1))])[:-1]
    leave = np.concatenate([[0.0], np.cumsum(whole.min(axis=1))])[:-1]
    firsts = np.array([ranks.tolist().index(r) for r in range(schedule.n_ranks)])
    after = model.least_after(cuts)
    ways = entry[firsts] + np.maximum(after, 0.0 if split else leave[firsts])
    if model.overlaps:
        ways = np.zeros_like(ways)
    forward, backward = model.messages_of(cuts)
    transfer = np.maximum(forward.link, backward.link)
    least = (
        (busy + ways).max(),
        schedule.n_microbatches * transfer.max(initial=0.0),
        _disk_seconds(model, cuts),
    )
    return float(max(least))


def _durations(model: CostModel, cuts: Sequence[int]) -> np.ndarray:
    """Returns seconds by kind of action, stage and microbatch."""
    seconds = model.phase_seconds(cuts)
    if model.together:
        sizes = np.array(stage_group_sizes(model.schedule))
        # All microbatches of a group but the first one save some time.
        saved = model.saved_seconds(cuts) * ((sizes - 1) / sizes)
        seconds = np.maximum(seconds - saved[:, :, None], 0.0)
    forward, backward_input, backward_weight = seconds
    durations = np.empty((len(KINDS), *forward.shape))
    durations[FORWARD] = durations[RECOMPUTE] = forward
    durations[BACKWARD] = backward_input + backward_weight
    durations[INPUT] = backward_input
    durations[WEIGHT] = backward_weight
    return durations


def _busy_seconds(model: CostModel, durations: np.ndarray) -> np.ndarray:
    """Returns the seconds that each rank computes in a step."""
    schedule = model.schedule
    action, microbatch = schedule.members
    return np.bincount(
        np.array(schedule.stage_ranks)[schedule.stage[action]],
        weights=durations[schedule.kind[action], schedule.stage[action], microbatch],
    )


def _disk_seconds(model: CostModel, cuts: Sequence[int]) -> float:
    """Returns the seconds that the busiest disk works."""
    schedule = model.schedule
    each = np.add(*model.disk_seconds(cuts))
    if not each.any():
        return 0.0
    leaves, _ = absences(schedule, each > 0)
    stage = schedule.stage[leaves]
    work = np.bincount(schedule.action_ranks[leaves], weights=each[stage])
    return float(work.max(initial=0.0))
