"""Steady state: the seconds of one minibatch among many that overlap.

A rank goes on with the next minibatch after its own last action. So a run of them takes
less time than the sum of their makespans, unless the first rank is the last to end::

    rank 0   |==== 1 ====||==== 2 ====||==== 3 ====|
    rank 1     |==== 1 ====||==== 2 ====||==== 3 ====|
                            '- period --'

If a rank begins at once and ends last, the next minibatch adds a whole makespan. Else,
or with two weight versions, a few minibatches are simulated, until one adds the same
time on every rank. All later ones then add this time, too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from divisible.schedules.actions import KINDS
from divisible.schedules.timeline import Timeline

# Number of minibatches after which the mean of the last half is taken. Times on some
# ranks may alternate for ever.
_MOST = 8
# Sums of the same numbers in another order differ by rounding.
_ROUNDING = 1e-9


def steady_seconds(
    one: Timeline, run: Callable[[int], Timeline], weight_versions: int = 1
) -> float:
    """Returns the seconds that a minibatch adds to a long run of minibatches.

    Args:
        one: Simulated timeline of one minibatch.
        run: ``run(n)`` simulates ``n`` such minibatches, which follow each other.
        weight_versions: Number of weight versions of the schedule. With two, the end of
            a minibatch runs within the next one.

    Returns:
        Seconds; at most the makespan of one minibatch with one weight version. With two
        and fewer microbatches than ranks it may be more, since a rank runs forwards of
        the next minibatch before backwards that would end this one.

    Example:
        >>> from functools import partial
        >>> from divisible import simulate
        >>> from divisible.schedules import Costs, zero_bubble_h2
        >>> simulated = partial(simulate, zero_bubble_h2(4, 8), Costs(1.0, 1.0, 1.0))
        >>> one = simulated()
        >>> one.makespan, steady_seconds(one, lambda n: simulated(n_minibatches=n))
        (27.0, 24.0)
    """
    makespan, most = one.makespan, np.inf if weight_versions > 1 else one.makespan
    slack = _ROUNDING * makespan
    if weight_versions == 1 and (_spans_of_ranks(one) >= makespan - slack).any():
        return makespan
    n = weight_versions
    while n < _MOST:
        n *= 2
        # No forwards run between the last backwards of a flush, so these end sooner.
        ends = _ends(run(n))[: n + 1 - weight_versions]
        added = np.diff(ends[-1 - weight_versions :], axis=0)
        if np.ptp(added) <= slack:
            return min(float(added.max()), most)
    half = n // 2
    return min(float(ends[-1].max() - ends[-1 - half].max()) / half, most)


def _spans_of_ranks(timeline: Timeline) -> np.ndarray:
    """Returns when each rank that begins at once has ended; 0 for other ranks."""
    compute = timeline.category < len(KINDS)
    rank = timeline.rank[compute]
    first, last = np.full(timeline.n_ranks, np.inf), np.zeros(timeline.n_ranks)
    np.minimum.at(first, rank, timeline.start[compute])
    np.maximum.at(last, rank, timeline.end[compute])
    return np.where(first <= timeline.start.min(initial=0.0), last, 0.0)


def _ends(timeline: Timeline) -> np.ndarray:
    """Returns the end of each minibatch on each rank, of shape (minibatches, ranks)."""
    compute = timeline.category < len(KINDS)
    microbatch = timeline.microbatch[compute]
    last = (microbatch + timeline.count[compute]).max()
    ends = np.zeros((timeline.n_minibatches, timeline.n_ranks))
    place = microbatch // (last // timeline.n_minibatches), timeline.rank[compute]
    np.maximum.at(ends, place, timeline.end[compute])
    return ends
