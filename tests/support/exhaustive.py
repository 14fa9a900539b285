"""The shortest schedule of tiny cases, by trying every order."""

import numpy as np


def shortest(costs, n_microbatches, stage_ranks, limits=None):
    """Returns the least makespan of any order of F, I and W on each rank.

    Args:
        costs: Costs of the stages.
        n_microbatches: Number of microbatches.
        stage_ranks: For each stage its rank.
        limits: For each rank, the number of microbatches that its stages may hold in
            total; no limits by default.
    """
    d, n_ranks = len(stage_ranks), max(stage_ranks) + 1
    limits = [np.inf] * n_ranks if limits is None else limits
    seconds = costs.durations(d, n_microbatches)
    forward, backward = (np.add(*costs.edges(d, way)) for way in (True, False))
    actions = [
        (k, s, m) for k in "FIW" for s in range(d) for m in range(n_microbatches)
    ]
    best, seen = [np.inf], set()

    def arrival(ends, action):
        """Returns when an action's input is there; None if it is not computed yet."""
        kind, stage, m = action
        if kind == "F":
            need = ("F", stage - 1, m) if stage else None
        elif kind == "W":
            need = ("I", stage, m)
        else:
            need = ("I", stage + 1, m) if stage < d - 1 else ("F", stage, m)
        if need is None:
            return 0.0
        if need not in ends:
            return None
        apart = stage_ranks[need[1]] != stage_ranks[stage]
        delay = forward if kind == "F" else backward
        return ends[need] + (delay[min(stage, need[1])] if apart else 0.0)

    def extend(ends, free, held):
        if max(free) >= best[0]:
            return
        if len(ends) == len(actions):
            best[0] = max(free)
            return
        state = frozenset(ends.items())
        if state in seen:
            return
        seen.add(state)
        for action in actions:
            ready = None if action in ends else arrival(ends, action)
            kind, stage, m = action
            rank = stage_ranks[stage]
            if ready is None or (kind == "F" and held[rank] >= limits[rank]):
                continue
            end = max(ready, free[rank]) + seconds["FBIW".index(kind), stage, m]
            now, holds = list(free), list(held)
            now[rank] = end
            holds[rank] += (kind == "F") - (kind == "W")
            extend({**ends, action: end}, now, holds)

    extend({}, [0.0] * n_ranks, [0] * n_ranks)
    return best[0]
